"""Who may join a cluster and who may not; who may call a controller and who may not: each refusal by its name."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.chaos.live.clusters.test_cluster import free_port
from headrace.cluster.certificates import (
    Credentials,
    Role,
    create_authority,
    create_node,
    fingerprint,
    role_host,
)
from headrace.cluster.join import PORT_OFFSET, JoinToken, encode_token, read_token
from headrace.controller.effects.lines import LINES_MAX
from headrace.controller.membership.cluster_files import ClusterFiles
from headrace.controller.membership.joining import HANDSHAKE_S, STRANGERS_MAX
from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc
from headrace.worker.membership.join import JoinError, join, read_membership
from tests.kits.run.kill import headrace
from tests.kits.run.netns import Cluster, Host, Net, wait_for

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a log and a controller on loopback, where TLS is spoken too."""
    net = Net()
    folder = tmp_path_factory.mktemp("cluster")
    made = Cluster(net, folder, port=free_port(), root=str(folder / "root"))
    here = Host("here", "", "127.0.0.1", "")
    net.hosts["here"] = here
    try:
        made.init(here)
        made.controller(here)
        yield made
    finally:
        made.close()
        net.hosts.clear()
        net.close()


def forged(cluster: Cluster, **changes: object) -> str:
    """A token like a good one, changed, and sealed with a key that is not the cluster's."""
    token = read_token(cluster.token("x"))
    fields = {name: changes.get(name, getattr(token, name)) for name in token.__dataclass_fields__}
    return encode_token(JoinToken(**fields), bytes(32))  # type: ignore[arg-type]


def test_a_node_joins_under_the_name_of_its_token(cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.token("press-7")
    member = join(token, tmp_path)
    assert member.name == "press-7"
    assert join(token, tmp_path) == member == read_membership(tmp_path)
    assert (tmp_path / "node.key").stat().st_mode & 0o777 == 0o600


def test_a_node_whose_answer_was_lost_joins_with_its_key(cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.token("")
    first = join(token, tmp_path / "first")
    assert first.name.startswith("worker-")
    for name in ("member.json", "node.pem"):
        (tmp_path / "first" / name).unlink()
    assert join(token, tmp_path / "first").name == first.name
    with pytest.raises(JoinError, match=": another node has joined with this token"):
        join(token, tmp_path / "second")
    assert read_membership(tmp_path / "second") is None


def test_a_spent_token_is_spent_for_the_next_controller_too(cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.token("once")
    join(token, tmp_path / "first")
    controller = cluster.daemons["controller"].process
    controller.kill()
    controller.wait(60)
    cluster.controller(cluster.net.hosts["here"])

    def refusal() -> str:
        with pytest.raises(JoinError) as refused:
            join(token, tmp_path / "second")
        return str(refused.value)

    # Until it leads it admits nobody.
    wait_for(lambda: "another node has joined with this token" in refusal(), "the next controller leads")


def test_without_a_log_the_clusters_folder_says_which_key_spent_a_token(cluster: Cluster) -> None:
    files = ClusterFiles.read(cluster.files)
    first, again, other = (asyncio.run(files.spend("ab" * 16, "w", key * 64)) for key in "aab")
    assert (first, again) == ("", "")
    assert "another node has joined with this token" in other


def test_a_token_that_the_cluster_did_not_make_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(JoinError, match=": the token was not made by this cluster"):
        join(forged(cluster), tmp_path)


def test_a_token_past_its_day_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    token = read_token(cluster.token("late"))
    fields = {name: getattr(token, name) for name in token.__dataclass_fields__}
    key = ClusterFiles.read(cluster.files).key
    expired = encode_token(JoinToken(**{**fields, "expires_at": int(NOW.timestamp()) - 1}), key)
    with pytest.raises(JoinError, match=": the token has expired"):
        join(expired, tmp_path)


def test_a_controller_that_is_not_the_tokens_is_told_nothing(cluster: Cluster, tmp_path: Path) -> None:
    other = fingerprint(create_authority("other", NOW).certificate())
    log = cluster.daemons["controller"].log
    before = log.read_text().count("refused")
    with pytest.raises(JoinError, match="it is a controller of another cluster than the token's"):
        join(forged(cluster, authority=other), tmp_path)
    assert log.read_text().count("refused") == before, "the token was not even shown"


@pytest.mark.parametrize("text", ["", "hrj1.", "hrj1.AAAA", "hrj1.~~~", "hello", "hrj1." + "A" * 5000])
def test_what_is_no_token_is_refused_before_anyone_is_asked(text: str, tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="no join token"):
        join(text, tmp_path)


def test_a_member_of_one_cluster_does_not_join_another_by_mistake(cluster: Cluster, tmp_path: Path) -> None:
    join(cluster.token("mine"), tmp_path)
    other = fingerprint(create_authority("other", NOW).certificate())
    with pytest.raises(JoinError, match="a member of another cluster"):
        join(forged(cluster, authority=other), tmp_path)


# -- the control plane --


def register(
    cluster: Cluster, credentials: Credentials | None, *, version: str = "", worker: str = "w"
) -> tuple[str, str]:
    """What becomes of a worker that registers so: a status code and words, or a refusal and its reason."""
    files = ClusterFiles.read(cluster.files)
    options = [("grpc.ssl_target_name_override", role_host(Role.CONTROLLER))]
    authority = files.authority.certificate_pem
    tls = (
        grpc.ssl_channel_credentials(authority)
        if credentials is None
        else grpc.ssl_channel_credentials(authority, credentials.key_pem, credentials.certificate_pem)
    )
    message = pb.FromWorker(register=pb.Register(worker=worker, version=version, cores=1, pid=1))
    with grpc.secure_channel(f"127.0.0.1:{cluster.port}", tls, options=options) as channel:
        stub = rpc.ControlStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = next(stub.Attend(iter([message]), timeout=300))
        except grpc.RpcError as error:
            return error.code().name, str(error.details())
        return answer.WhichOneof("message"), answer.refusal.reason


def test_a_worker_without_a_certificate_is_refused_by_tls(cluster: Cluster) -> None:
    assert register(cluster, None)[0] == "UNAVAILABLE"


def test_a_certificate_of_another_authority_is_refused_by_tls(cluster: Cluster) -> None:
    stranger = create_node(create_authority("headrace", NOW), Role.WORKER, "w", NOW)
    assert register(cluster, stranger)[0] == "UNAVAILABLE"


def test_a_certificate_that_signed_itself_is_refused_by_tls(cluster: Cluster) -> None:
    assert register(cluster, create_authority("headrace", NOW))[0] == "UNAVAILABLE"


def test_an_expired_certificate_is_refused_by_tls(cluster: Cluster) -> None:
    authority = ClusterFiles.read(cluster.files).authority
    old = create_node(authority, Role.WORKER, "w", NOW - timedelta(days=2), lifetime=timedelta(days=1))
    assert register(cluster, old)[0] == "UNAVAILABLE"


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.CONTROLLER])
def test_a_certificate_of_another_role_is_refused_by_name(cluster: Cluster, role: Role) -> None:
    node = create_node(ClusterFiles.read(cluster.files).authority, role, "w", NOW)
    code, words = register(cluster, node)
    assert code == "PERMISSION_DENIED"
    assert f"Attend: headrace://headrace/{role.value}/w is where only a worker may be" in words


@pytest.mark.parametrize(("method", "request_of"), [("Apply", pb.ApplyRequest), ("Fault", pb.FaultAsked)])
def test_a_worker_may_not_apply_a_pipeline_nor_ask_for_a_fault(
    cluster: Cluster, method: str, request_of: Callable[[], Any]
) -> None:
    files = ClusterFiles.read(cluster.files)
    node = create_node(files.authority, Role.WORKER, "w", NOW)
    tls = grpc.ssl_channel_credentials(files.authority.certificate_pem, node.key_pem, node.certificate_pem)
    options = [("grpc.ssl_target_name_override", role_host(Role.CONTROLLER))]
    with (
        grpc.secure_channel(f"127.0.0.1:{cluster.port}", tls, options=options) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        getattr(rpc.ControlStub(channel), method)(request_of(), timeout=300)  # type: ignore[no-untyped-call]
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "is where only an operator" in refused.value.details()


def test_a_worker_of_another_version_is_refused_with_both_versions_named(cluster: Cluster) -> None:
    node = create_node(ClusterFiles.read(cluster.files).authority, Role.WORKER, "old", NOW)
    kind, reason = register(cluster, node, version="0.0.1")
    assert kind == "refusal"
    assert "worker old is Headrace 0.0.1, the controller " in reason


def test_a_worker_is_known_by_its_certificate_whatever_it_says(cluster: Cluster) -> None:
    node = create_node(ClusterFiles.read(cluster.files).authority, Role.WORKER, "honest", NOW)
    assert "worker honest is" in register(cluster, node, version="0.0.1", worker="liar")[1]


def test_a_controller_that_has_a_workers_certificate_is_not_talked_to(cluster: Cluster) -> None:
    """A worker that was broken into cannot stand in for a controller, whatever it is called."""
    authority = ClusterFiles.read(cluster.files).authority
    worker = create_node(authority, Role.WORKER, role_host(Role.CONTROLLER), NOW)
    hosts = str(worker.certificate().extensions)
    assert f"<DNSName(value='{role_host(Role.WORKER)}')>" in hosts
    assert f"<DNSName(value='{role_host(Role.CONTROLLER)}')>" not in hosts


# -- plain text --


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["controller", "--listen", "0.0.0.0:7421"], "without a cluster nothing on it proves who speaks"),
        (["worker", "--controller", "10.0.0.1:7420"], "without a cluster nothing on it proves who speaks"),
        (["status", "--controller", "10.0.0.1:7420"], "without a cluster nothing on it proves who speaks"),
        (["controller", "--cluster", "nowhere"], "nowhere is no cluster's folder"),
        (["worker", "--state", "nowhere"], "nowhere holds no membership: join a cluster with a token: give it on"),
        (["worker", "--join", "token"], "--join needs --state"),
        (["cluster", "token", "nowhere"], "nowhere is no cluster's folder"),
        (["cluster", "init", "x", "--controller", "nohost"], "give HOST:PORT"),
    ],
    ids=["a controller", "a worker", "a person", "no cluster", "no member", "no state", "no folder", "no port"],
)
def test_what_would_be_said_in_plain_text_beyond_this_host_is_refused(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    done = subprocess.run(
        headrace(*arguments), capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert done.returncode in (1, 2)
    assert words in done.stderr


def test_a_cluster_is_made_once(cluster: Cluster) -> None:
    again = cluster.call(cluster.net.hosts["here"], "cluster", "init", str(cluster.files), "--controller", "h:1")
    assert again.returncode == 1
    assert "is not empty: a cluster is made once" in again.stderr


def test_a_flood_of_strangers_who_say_nothing_keeps_no_true_node_out(cluster: Cluster, tmp_path: Path) -> None:
    """Half of them never begin TLS, the others are through with it; three times as many as the door takes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    token = cluster.token("through")
    with contextlib.ExitStack() as held:
        for number in range(3 * STRANGERS_MAX):
            plain = held.enter_context(socket.create_connection(("127.0.0.1", cluster.port + PORT_OFFSET), 60))
            plain.settimeout(60)
            if number % 2:
                with contextlib.suppress(OSError):  # it may have given way already
                    held.enter_context(context.wrap_socket(plain))
        assert join(token, tmp_path / "through").name == "through"
    log = cluster.daemons["controller"].log
    wait_for(lambda: "it gave way to others" in log.read_text(), "those who gave way in the log")
    assert log.read_text().count("it gave way to others") <= 3 * LINES_MAX


def test_a_stranger_that_begins_no_tls_is_sent_away_in_time(cluster: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", cluster.port + PORT_OFFSET), 60) as silent:
        silent.settimeout(HANDSHAKE_S + 60)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""
        assert time.monotonic() - began >= HANDSHAKE_S - 0.5


def test_guests_that_say_nothing_are_sent_away(cluster: Cluster) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", cluster.port + PORT_OFFSET), 60) as plain,
        context.wrap_socket(plain) as guest,
    ):
        guest.sendall((1 << 31).to_bytes(4, "little"))
        guest.settimeout(60)
        while guest.recv(65536):
            pass
    log = cluster.daemons["controller"].log
    wait_for(lambda: "a message of 2147483648 bytes" in log.read_text(), "the refusal in the controller's log")
