"""How a worker joins its cluster, proves who it is, and stays connected."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.membership.credentials import (
        SHOWN as SHOWN,
        is_token as is_token,
        membership as membership,
        network_of as network_of,
    )
    from headrace.worker.membership.departure import Departure as Departure, end_task as end_task
    from headrace.worker.membership.member import (
        JoinError as JoinError,
        Membership as Membership,
        host_id as host_id,
        join_address as join_address,
        own_addresses as own_addresses,
        split_address as split_address,
    )
    from headrace.worker.membership.outbox import ControllerOutbox as ControllerOutbox
    from headrace.worker.membership.session import ControllerSession as ControllerSession, told_by as told_by
else:
    __getattr__ = door(__name__)
