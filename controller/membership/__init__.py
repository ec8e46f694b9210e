"""How a controller issues certificates and tickets, and whom it lets in."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.membership import guard as guard
    from headrace.controller.membership.cluster_files import (
        CLUSTER_KEY_BYTES as CLUSTER_KEY_BYTES,
        CONTROLLER as CONTROLLER,
        OPERATOR as OPERATOR,
        ClusterFiles as ClusterFiles,
        ClusterFilesError as ClusterFilesError,
    )
    from headrace.controller.membership.guard import (
        Act as Act,
        Guard as Guard,
        MemberLimits as MemberLimits,
        act_of as act_of,
        caller as caller,
        server_credentials as server_credentials,
        why_not as why_not,
    )
    from headrace.controller.membership.joining import JoinGate as JoinGate
    from headrace.controller.membership.tickets import (
        Introduction as Introduction,
        introduce as introduce,
        link_ticket as link_ticket,
    )
else:
    __getattr__ = door(__name__)
