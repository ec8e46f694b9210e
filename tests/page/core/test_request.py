"""Who is served: a request of the page itself, or of the person who has its key, and nobody else."""

import pytest

from headrace.page.core.request import BODY_BYTES_MAX, HEAD_BYTES_MAX, RequestRefused, body_length, check, parse_head

KEY = "k" * 43


def head(line: str = "GET /api/state HTTP/1.1", **given: str) -> bytes:
    headers = {"Host": "127.0.0.1:7430", "Authorization": f"Bearer {KEY}"}
    headers |= {name.replace("_", "-"): value for name, value in given.items()}
    return "".join(f"{part}\r\n" for part in (line, *(f"{k}: {v}" for k, v in headers.items() if v))).encode() + b"\r\n"


def status(data: bytes) -> int:
    """200 where the request would be served."""
    try:
        check(parse_head(data), KEY)
    except RequestRefused as error:
        return error.status
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1:7430", "localhost:1", "[::1]:9", "localhost"])
def test_a_request_at_loopback_with_the_key_is_served(host: str) -> None:
    assert status(head(Host=host, Origin=f"http://{host}", Sec_Fetch_Site="same-origin")) == 200


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"Host": "evil.example:7430"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost:7430@evil.example"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:7431"}, 403),
        ({"Origin": "https://127.0.0.1:7430"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
    ],
)
def test_a_request_of_another_page_or_without_the_key_is_refused(given: dict[str, str], refused: int) -> None:
    assert status(head(**given)) == refused
    assert status(head("POST /api/ask HTTP/1.1", **given)) == refused


def test_the_bundle_needs_no_key_but_loopback() -> None:
    assert status(head("GET /main.js HTTP/1.1", Authorization="")) == 200
    assert status(head("GET /main.js HTTP/1.1", Authorization="", Host="evil.example")) == 421
    assert status(head("POST /main.js HTTP/1.1")) == 405


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/2\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n Folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\n\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % number for number in range(65)) + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
)
def test_what_is_no_plain_head_is_refused(data: bytes) -> None:
    assert status(data) in (400, 431)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"Content_Length": str(BODY_BYTES_MAX + 1)}, 413),
        ({"Content_Length": "-1"}, 411),
        ({"Content_Length": "9" * 30}, 411),
        ({"Content_Length": ""}, 411),
        ({"Transfer_Encoding": "chunked"}, 411),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_body_is_json_of_a_length_within_the_limit(given: dict[str, str], refused: int) -> None:
    usual = {"Content_Length": "2", "Content_Type": "application/json"}
    assert body_length(parse_head(head("POST /api/ask HTTP/1.1", **usual))) == 2
    with pytest.raises(RequestRefused) as found:
        body_length(parse_head(head("POST /api/ask HTTP/1.1", **(usual | given))))
    assert found.value.status == refused
