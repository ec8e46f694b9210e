"""Who may do what: by one table of roles and acts, and refused with one line."""

import pytest

from headrace.cluster.certificates import Role
from headrace.controller.membership.guard import MAY_CALL, OPERATOR, RIGHTS, USER, Act, act_of, why_not
from headrace.protos import control_pb2 as pb


def test_every_method_has_its_roles_and_every_act_its_operator() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Control"].methods_by_name
    assert set(MAY_CALL) == set(methods)
    assert {act for role, act in RIGHTS if role == OPERATOR} == set(Act)
    assert {role for role, _ in RIGHTS} <= {role.value for role in Role}
    assert all(Role.VIEWER not in MAY_CALL[name] for name in ("Apply", "Stop", "Steer", "Queue", "Fault"))


@pytest.mark.parametrize(
    ("request_", "act"),
    [
        (pb.SteerRequest(expel="worker/one"), Act.EXPEL),
        (pb.SteerRequest(clear=True), Act.CLEAR),
        (pb.SteerRequest(worker="one"), Act.DRAIN),
        (pb.SteerRequest(worker="one", clear=True, expel="worker/one"), Act.EXPEL),
        (pb.SteerRequest(pipeline="plain", pause=True), Act.CHANGE),
    ],
)
def test_what_is_asked_for_is_known(request_: pb.SteerRequest, act: Act) -> None:
    assert act_of(request_) is act


@pytest.mark.parametrize(
    ("member", "act", "pipeline", "owner", "words"),
    [
        ("", Act.EXPEL, "", None, ""),
        ("operator/ann", Act.STOP, "plain", "user/bob", ""),
        ("user/bob", Act.APPLY, "plain", None, ""),
        ("user/bob", Act.STOP, "plain", "user/bob", ""),
        ("user/bob", Act.APPLY, "plain", "user/eve", "user bob may apply pipelines of his own: 'plain' is of user eve"),
        ("user/bob", Act.STOP, "plain", "", "user bob may stop pipelines of his own: 'plain' is of somebody unknown"),
        ("user/bob", Act.CLEAR, "", None, "user bob may clear pipelines of his own: name one of them"),
        ("user/bob", Act.DRAIN, "", None, "user bob may not drain workers: an operator may"),
        ("user/bob", Act.QUEUE, "", None, "user bob may not set or remove queues: an operator may"),
        ("viewer/eve", Act.APPLY, "plain", None, "viewer eve may not apply pipelines: an operator may"),
    ],
)
def test_a_role_may_do_what_the_table_says(member: str, act: Act, pipeline: str, owner: str | None, words: str) -> None:
    assert why_not(member, act, pipeline, owner) == words


def test_a_name_that_ends_a_role_is_of_nobody_else() -> None:
    assert why_not(f"{USER}/bob/eve", Act.STOP, "plain", "user/bob") != ""
