"""What Headrace uses of urllib3 and minio behind an underscore is where it was. A release that moves it fails here."""

import inspect
import io
import socket
import threading
import time
from http.client import HTTPResponse

import certifi
import minio
import pytest
import urllib3
from minio import Minio

from headrace.store.s3.connection.sockets import TimedSocket, allow, pools_of
from headrace.store.s3.connection.wire import _plain_socket

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n\r\n"


def test_the_builder_of_addresses_takes_what_it_took() -> None:
    client = Minio("127.0.0.1:1", secure=False)
    wanted = {"method", "region", "bucket_name", "object_name", "query_params"}
    assert wanted <= set(inspect.signature(client._base_url.build).parameters), minio.__version__
    client._base_url.virtual_style_flag = True
    assert client._base_url.virtual_style_flag is True


@pytest.mark.parametrize(("answer", "plain"), [(PLAIN, True), (CHUNKED, False)], ids=["plain", "chunked"])
def test_the_answer_below_urllib3_is_where_it_was(answer: bytes, *, plain: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as connection:
                while not connection.recv(65536).endswith(b"\r\n\r\n"):
                    pass
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        pool = pools_of(urllib3.PoolManager(), certifi.where())
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        response = pool.urlopen("GET", url, preload_content=False, decode_content=False)
        below = response._fp
        assert isinstance(below, HTTPResponse), urllib3.__version__
        assert bool(below.chunked) is not plain
        assert below.will_close is False
        assert isinstance(below.fp, io.BufferedReader)
        assert (type(_plain_socket(response)) is TimedSocket) is plain
        allow(response, 7)
        assert below.fp.raw._sock.until < time.monotonic() + 8
        if plain:
            assert below.length == 10
            into = bytearray(4)
            assert below.readinto(into) == 4
            assert into == b"0123"
            assert below.length == 6
            assert below.fp.peek()[:6] == b"456789"
        response.close()
        pool.clear()
        thread.join(10)
