"""A real S3 server for the tests that ask for one, started once."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The tests have no packages: this is how their modules find the kits that all of them share.
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from s3_server import S3Server, shared_server

from headrace.chaos.gates.s3 import S3Proxy


@pytest.fixture(scope="session")
def s3_server() -> S3Server:
    return shared_server()


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint) as proxy:
        yield proxy
