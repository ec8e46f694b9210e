"""An authority for nodes."""

import pytest

from tests.kits.transport.quic import Cluster


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster("test")
