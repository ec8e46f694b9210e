"""Certificates end after a year: whoever has one is told in time, and they are issued anew for the same keys."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from headrace import cluster
from headrace.client.client import controller_at
from headrace.client.errors import CliError
from headrace.client.new_cluster import make_cluster, operator, renew
from headrace.cluster.certificates import (
    NODE_LIFETIME,
    create_node,
    read_credentials,
    utc_now,
    verify,
    write_credentials,
)
from headrace.cluster.expiry import SOON, why_ended, why_renew
from headrace.cluster.roles import Role
from headrace.controller.membership.cluster_files import ClusterFiles

DAY = timedelta(days=1)


@pytest.fixture
def old(tmp_path: Path) -> ClusterFiles:
    """A cluster whose certificates ended yesterday."""
    files = make_cluster(tmp_path / "cluster", "press", ["127.0.0.1:7420"])
    then = utc_now() - NODE_LIFETIME - DAY
    for role in (Role.CONTROLLER, Role.OPERATOR):
        write_credentials(files.folder, role.value, create_node(files.authority, role, role.value, then))
    return files


def end_of(folder: Path, name: str) -> datetime:
    return read_credentials(folder, name).certificate().not_valid_after_utc


def test_renewed_certificates_are_in_force_for_the_keys_that_stood(
    old: ClusterFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {role: read_credentials(old.folder, role.value) for role in (Role.CONTROLLER, Role.OPERATOR)}
    assert renew(old.folder) == 0
    for role, was in before.items():
        now = read_credentials(old.folder, role.value)
        assert now.key_pem == was.key_pem
        assert verify(now.certificate(), old.authority.certificate(), [role], utc_now()).identity.name == role.value
        assert end_of(old.folder, role.value) - utc_now() > NODE_LIFETIME - DAY
    said = capsys.readouterr()
    end = f"{end_of(old.folder, 'controller'):%Y-%m-%d}"
    assert said.out == f"certificates of cluster press are good until {end}: controller, operator\n"
    assert "start each controller again" in said.err


def test_a_folder_without_an_operators_key_renews_the_controllers_alone(old: ClusterFiles) -> None:
    (old.folder / "operator.key").unlink()
    ended = (old.folder / "operator.pem").read_bytes()
    assert renew(old.folder) == 0
    assert end_of(old.folder, "controller") > utc_now()
    assert (old.folder / "operator.pem").read_bytes() == ended


@pytest.mark.parametrize("name", ["controller", "operator"])
def test_a_key_that_cannot_be_read_is_told_and_nothing_renewed(old: ClusterFiles, name: str) -> None:
    (old.folder / f"{name}.key").write_bytes(b"no key")
    ended = end_of(old.folder, "controller")
    with pytest.raises(CliError, match=f"the key of the {name} cannot be read"):
        renew(old.folder)
    assert end_of(old.folder, "controller") == ended


def test_a_certificate_is_spoken_of_a_month_before_its_end(tmp_path: Path) -> None:
    made = read_credentials(make_cluster(tmp_path / "cluster", "press", ["127.0.0.1:7420"]).folder, "operator")
    end = made.certificate().not_valid_after_utc
    assert why_renew(made, end - SOON) == ""
    assert why_renew(made, end - SOON + DAY) == f"its certificate ends on {end:%Y-%m-%d}"
    assert why_ended(made, end) == ""
    assert why_renew(made, end + DAY) == why_ended(made, end + DAY) == f"its certificate ended on {end:%Y-%m-%d}"
    unreadable = cluster.Credentials(b"none", made.key_pem, made.authority_pem)
    assert why_ended(unreadable, end).startswith("its certificate cannot be read")


def test_a_person_with_an_ended_certificate_hears_so_before_asking(old: ClusterFiles, tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"its certificate ended on .*headrace cluster renew"):
        controller_at("", str(old.folder))
    operator(old.folder, tmp_path / "ann", "ann")
    assert controller_at("", str(tmp_path / "ann")).address == "127.0.0.1:7420"
