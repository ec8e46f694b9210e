"""Who may do what: one table of roles and acts.

The guard holds roles against methods; here stands what a request asks for. Where nobody has certificates, on a socket
in a folder of its user, whoever gets there is that user and may do all, and so may who has the key of the page.
"""

from __future__ import annotations

from enum import Enum

from headrace.protos import control_pb2 as pb


class Act(Enum):
    """What people ask for, as it follows `may`."""

    APPLY = "apply pipelines"
    STOP = "stop pipelines"
    CHANGE = "pause, resume, scale, move or relink pipelines"
    CLEAR = "clear pipelines"
    DRAIN = "drain workers"
    EXPEL = "expel members"
    QUEUE = "set or remove queues"


class Reach(Enum):
    """Whose pipelines an act may be about."""

    ALL = "all"
    OWN = "own"


#: Roles by their names in certificates: here nothing needs the library of these.
OPERATOR, USER = "operator", "user"

#: What is not here, nobody of that role may.
RIGHTS: dict[tuple[str, Act], Reach] = {
    (OPERATOR, Act.APPLY): Reach.ALL,
    (OPERATOR, Act.STOP): Reach.ALL,
    (OPERATOR, Act.CHANGE): Reach.ALL,
    (OPERATOR, Act.CLEAR): Reach.ALL,
    (OPERATOR, Act.DRAIN): Reach.ALL,
    (OPERATOR, Act.EXPEL): Reach.ALL,
    (OPERATOR, Act.QUEUE): Reach.ALL,
    (USER, Act.APPLY): Reach.OWN,
    (USER, Act.STOP): Reach.OWN,
    (USER, Act.CHANGE): Reach.OWN,
    (USER, Act.CLEAR): Reach.OWN,
}


def act_of(request: pb.SteerRequest) -> Act:
    """What a request of the method Steer asks for."""
    if request.expel:
        return Act.EXPEL
    if request.clear:
        return Act.CLEAR
    return Act.DRAIN if request.worker else Act.CHANGE


def why_not(member: str, act: Act, pipeline: str = "", owner: str | None = None) -> str:
    """Why a member, as role/name, may not do that; empty if it may, and where nobody has certificates.

    `owner` is who applied the pipeline, None where there is none of that name; without a name it is about all of them.
    """
    role, _, name = member.partition("/")
    if not member:
        return ""
    reach = RIGHTS.get((role, act))
    if reach is None:
        return f"{role} {name} may not {act.value}: an operator may"
    if reach is Reach.ALL or (pipeline and owner in (None, member)) or (act is Act.APPLY and owner is None):
        return ""
    whose = f"{pipeline!r} is of {(owner or 'somebody unknown').replace('/', ' ')}" if pipeline else "name one of them"
    return f"{role} {name} may {act.value} of his own: {whose}"
