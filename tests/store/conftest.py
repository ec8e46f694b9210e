"""A real S3 server for the tests that ask for one, started once."""

from collections.abc import Iterator

import pytest

from headrace.chaos.gates.s3 import S3Proxy
from tests.kits.store.s3_server import S3Server, shared_server


@pytest.fixture(scope="session")
def s3_server() -> S3Server:
    return shared_server()


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint) as proxy:
        yield proxy
