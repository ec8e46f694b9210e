"""Two hosts that cannot reach each other and a third that both reach: it relays, and the dataset is the same."""

from pathlib import Path

import pytest

from tests.hosts.test_hosts import apply, edges
from tests.kits.run.dataset import fates
from tests.kits.run.netns import cluster_of


@pytest.mark.slow
def test_a_pipeline_runs_across_unconnected_hosts_through_a_third(
    texts: Path, undisturbed: Path, tmp_path: Path
) -> None:
    with cluster_of(tmp_path, "one", "two", "mid") as (cluster, hosts):
        cluster.net.apart("one", "two")
        places = ("--place", "read=one", "--place", "write=two")
        across = apply(cluster, hosts["ctl"], texts, tmp_path / "across", *places)
        assert edges(across) == {("one", "quic", "two")}
        assert {link["via"] for link in across["links"]} == {"mid"}
        assert "quic via mid" in cluster.call(hosts["ctl"], "status").stdout
    assert fates(tmp_path / "across") == fates(undisturbed)
