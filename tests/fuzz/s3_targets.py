"""Targets of `headrace.store` at S3: what an endpoint answers, and what people write to say where one is."""

from __future__ import annotations

import contextlib
import copy
import functools
import subprocess
import xml.etree.ElementTree as ET
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import orjson

from headrace.store import open as opening
from headrace.store.contract.errors import InvalidKey, InvalidUri, StoreRefused, StoreUnavailable
from headrace.store.contract.objects import validate_key
from headrace.store.s3 import listing, retry, upload
from headrace.store.s3.connection import config, credentials, wire, xml
from headrace.store.s3.connection.wire import Answer
from tests.fuzz.fuzz_files import folder_of_process
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_json

TARGET = config.resolve("s3://bucket/data?endpoint=http://127.0.0.1:9000", {"HOME": "/nonexistent"})

ERROR = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Slow.</Message><Region>eu</Region></Error>'
PAGE = (
    b"<ListBucketResult><Name>b</Name><Prefix>data/</Prefix><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>"
    b"<NextContinuationToken>t1</NextContinuationToken>"
    b"<Contents><Key>data/a%2Fb</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    b"<ETag>&quot;e&quot;</ETag><Size>5</Size></Contents>"
    b"<Contents><Key>data/c</Key><ETag>x</ETag><Size>7</Size></Contents>"
    b"<CommonPrefixes><Prefix>data/d/</Prefix></CommonPrefixes></ListBucketResult>"
)
LAST = PAGE.replace(b"true", b"false").replace(b"data/", b"data/z")
XML_WORDS = tuple(
    word.encode()
    for word in (
        "<Contents>",
        "</Contents>",
        "<Key>",
        "</Key>",
        "<Size>",
        "-1",
        "<IsTruncated>",
        "<CommonPrefixes>",
        "<Prefix/>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]>",
        "&amp;",
        "&#x1;",
        "<ETag/>",
        "%00",
        'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"',
        "<LastModified>",
        "<Owner>",
        "<StorageClass>",
        "<NextContinuationToken>",
    )
)


TEXTS = ("", "-1", "9" * 30, "true", "false", "é", "data/", "%2e%2e/", "1.5", "t1", " 5", "data/a", "z", "%00")


def xml_mutation(data: bytes, random: Random) -> bytes:
    """An element is doubled, taken away, put elsewhere, or has another text."""
    try:
        root = ET.fromstring(data)
    except ET.ParseError:
        return data
    places = [(parent, child) for parent in root.iter() for child in parent]
    if not places:
        return data
    parent, child = random.choice(places)
    match random.randrange(5):
        case 0:
            parent.remove(child)
        case 1:
            random.choice(places)[0].append(copy.deepcopy(child))
        case 2:
            child.tag = random.choice(places)[1].tag
        case _:
            child.text = random.choice(
                ("", "-1", "9" * 30, "true", "false", "é", "data/", "%2e%2e/", "1.5", "t1", " 5")
            )
    return ET.tostring(root)


def run_xml(data: bytes) -> object | None:
    try:
        root = xml.read_xml(data)
    except xml.BadXml:
        return None
    # What was looked at is the tree that is made.
    found = sum(1 for _ in root.iter())
    assert found <= xml.XML_ELEMENTS_MAX
    return found, root.tag


def run_answer(data: bytes) -> object | None:
    """The first byte says the status, the rest is the body."""
    if not data:
        return None
    statuses = (200, 206, 204, 301, 304, 400, 403, 404, 409, 412, 416, 429, 500, 503, 507)
    answer = Answer(statuses[data[0] % len(statuses)], {}, data[1:])
    outcome = retry.outcome_of(answer)
    assert retry.remedy_of(answer, TARGET)
    said = retry.problem_of(answer), retry.code_of(answer)
    if said[1] and answer.status in (200, 204, 206):
        assert outcome is not retry.AnswerKind.DONE
    return (outcome.value, said[1]) if said[1] else None


def run_listing(data: bytes) -> object | None:
    """A page of the input, and one that ends the listing: flat, and folder by folder."""
    found: list[Any] = []
    for listed in (list_flat, list_folders):
        pages = [data, LAST]

        def fetch(_query: dict[str, str], pages: list[bytes] = pages) -> Answer:
            return Answer(200, {}, pages.pop(0) if len(pages) > 1 else pages[0])

        with contextlib.suppress(StoreUnavailable, listing.OutOfOrder):
            lines = listed(fetch)
            keys = [line.key for line in lines]
            assert all(line.size >= 0 for line in lines)
            found += keys
    return found or None


def list_flat(fetch: listing.Fetch) -> list[listing.Listed]:
    return list(listing.list_flat(fetch, "data/", ""))


def list_folders(fetch: listing.Fetch) -> list[listing.Listed]:
    """As far as the first page leads: a walk asks for each folder that it names."""
    return list(listing.list_folders(fetch, "data/", "data/", ""))


def run_upload(data: bytes) -> object | None:
    """What an endpoint answers to who begins an upload in parts."""
    reply = SimpleNamespace(answer=Answer(200, {}, data))
    retrier: Any = SimpleNamespace(target=TARGET, send=lambda *_, **__: reply)
    with contextlib.suppress(StoreUnavailable):
        return upload._begin(retrier, "k", {})
    return None


def run_lengths(data: bytes) -> object | None:
    """The headers by which an answer says how long it is."""
    lengths, _, ranges = data.decode("latin-1").partition("\n")
    found = None
    with contextlib.suppress(wire.NoAnswer):
        found = wire.announced_bytes({"Content-Length": lengths})
        assert found is None or 0 <= found < 10**19
    total = None
    with contextlib.suppress(StoreRefused):
        total = a_store()._total("k", Answer(206, {"Content-Range": ranges}, b"x"))
        assert 0 <= total < 10**18
    return (found, total) if found is not None else None


@functools.cache
def a_store() -> Any:
    from headrace.store.s3.store import S3Store

    with patch.dict("os.environ", {"HOME": "/nonexistent"}, clear=True):
        return S3Store(TARGET.uri)


# -- where a store is --


def run_store_uri(data: bytes) -> object | None:
    text = data.decode("utf-8", "surrogateescape")
    environment = {"HOME": "/nonexistent"}
    found = None
    with contextlib.suppress(InvalidUri), patch.dict("os.environ", environment, clear=True):
        store = opening.open_store(text)
        again = opening.open_store(store.uri)
        assert again.uri == store.uri, "the URI of a store opens the same store"
        assert opening.one_name(text) == opening.one_name(store.uri)
        opening.below(store.uri, "ledger")
        found = store.uri
    with contextlib.suppress(InvalidKey):
        validate_key(text)
        assert ".." not in text.split("/")
        found = found or text
    config.redact(text)
    return found


def store_uris() -> list[bytes]:
    return [
        b"file:///data/corpus%20one",
        b"data/plain",
        b"s3://bucket/data?endpoint=http://127.0.0.1:9000&style=path",
        b"s3://bucket/a%20b?region=eu-1&sse=aws:kms&kms_key=k&anonymous=true",
    ]


URI_WORDS = (
    *(f"{name}=".encode() for name in config._PARAMETERS),
    *(b"s3://", b"file://", b"?", b"&", b"%2F", b"%00", b"..", b"http://[::1]:9", b"https://", b"aws:kms", b"//"),
    *(b"token=x", b"@", b"#", b"localhost/"),
)


def run_profile(data: bytes) -> object | None:
    """The file that S3 tools share, as `~/.aws/config` and as `~/.aws/credentials`."""
    PROFILE.write_bytes(data)
    environment = {"HOME": "/nonexistent", "AWS_CONFIG_FILE": str(PROFILE), "AWS_SHARED_CREDENTIALS_FILE": str(PROFILE)}
    with contextlib.suppress(InvalidUri):
        target = config.resolve("s3://bucket/data", environment)
        assert config.resolve(target.uri, environment) == target
        provider = credentials.credentials_of(target, environment)
        assert provider is not None
        with (
            patch.object(subprocess, "Popen", side_effect=OSError("not here")),
            contextlib.suppress(ValueError, credentials.CredentialsFailed),
        ):
            found = credentials._ProfileProvider(environment, None).retrieve()
            return target.uri, found.access_key
    return None


PROFILE = folder_of_process() / "profile"

PROFILES = [
    b"[default]\nregion = eu-1\naws_access_key_id = A\naws_secret_access_key = B%C\n",
    b"[default]\naws_access_key_id=A\naws_secret_access_key=S\nservices=x\n[services x]\ns3 =\n  endpoint_url = http://i",
]
PROFILE_WORDS = (
    b"[default]\n",
    b"[services x]",
    b"credential_process = ",
    b"endpoint_url = ",
    b"\n  ",
    b"%(",
    b"region=",
)


def run_credential_process(data: bytes) -> object | None:
    with (
        patch.object(credentials, "_printed", return_value=(data, 0)),
        contextlib.suppress(credentials.CredentialsFailed),
    ):
        found = credentials._of_process("p", "keys", {})
        found.is_expired()
        return found.access_key, found.secret_key
    return None


def processes() -> list[bytes]:
    keys = {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "B"}
    more = {**keys, "SessionToken": "t", "Expiration": "2099-01-01T00:00:00+00:00"}
    return [orjson.dumps(keys), orjson.dumps(more)]


UPLOAD = b"<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>u1</UploadId></InitiateMultipartUploadResult>"

TARGETS = [
    Target("s3_upload", ("headrace.store.s3.upload",), run_upload, lambda: [UPLOAD], mutate=xml_mutation),
    Target(
        "s3_xml",
        ("headrace.store.s3.connection.xml",),
        run_xml,
        lambda: [ERROR, PAGE],
        mutate=xml_mutation,
        words=XML_WORDS,
    ),
    Target("s3_answer", ("headrace.store.s3.retry",), run_answer, lambda: [b"\x0d" + ERROR], words=XML_WORDS),
    Target(
        "s3_listing",
        ("headrace.store.s3.listing",),
        run_listing,
        lambda: [PAGE, LAST],
        mutate=xml_mutation,
        words=XML_WORDS,
    ),
    Target(
        "s3_lengths",
        ("headrace.store.s3.connection.wire", "headrace.store.s3.store"),
        run_lengths,
        lambda: [b"12\nbytes 0-9/100"],
    ),
    Target(
        "store_uri",
        ("headrace.store.contract.objects", "headrace.store.s3.connection.config", "headrace.store.open"),
        run_store_uri,
        store_uris,
        words=URI_WORDS,
    ),
    Target("s3_profile", ("headrace.store.s3.connection.config",), run_profile, lambda: PROFILES, words=PROFILE_WORDS),
    Target(
        "credential_process",
        ("headrace.store.s3.connection.credentials",),
        run_credential_process,
        processes,
        mutate=within_json,
    ),
]
