"""Gates: what stands between two parts of Headrace and lets through what a scenario allows."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.gates.impairments import (
        Affected as Affected,
        Impairment as Impairment,
        NetworkFault as NetworkFault,
        Way as Way,
    )
    from headrace.chaos.gates.namespaces import (
        NetworkNamespaces as NetworkNamespaces,
        require_namespaces as require_namespaces,
    )
    from headrace.chaos.gates.network import NetworkGates as NetworkGates
    from headrace.chaos.gates.s3 import S3Fault as S3Fault, S3Proxy as S3Proxy, Trouble as Trouble
    from headrace.chaos.gates.sockets import (
        callers as callers,
        callers_of_socket as callers_of_socket,
        holders as holders,
        holders_of_socket as holders_of_socket,
    )
else:
    __getattr__ = door(__name__)
