"""Targets of what reads input: files of strangers, and the names that people give."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import orjson
import pyarrow as pa

from headrace.stages.dedup.core.scheme import normal_url
from headrace.stages.quality import urls
from headrace.stages.runtime.batch import RAW_BYTES_MAX
from headrace.stages.runtime.errors import InputError
from headrace.stages.sources import jsonl, lines, warc_payloads
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.objects import formats, patterns, unpack
from headrace.stages.sources.spool import SHED, SHED_REASON, SpoolSource
from headrace.stages.sources.warc import NESTING_MAX, WarcSource, nesting
from tests.fuzz.fuzz_files import empty_folder, fates, file_of, fragment_of
from tests.fuzz.harness import Target

#: Bytes of a payload, or of a stream, when it is decompressed.
PLAIN_BYTES_MAX = 1 << 20

LINES = (
    b'{"id": "a", "text": "one", "url": "http://x/1"}\n{"id": 2, "text": "two"}\n',
    b'\xef\xbb\xbf{"text": "marked"}\r\n\r\n  \n{"id": 18446744073709551616, "text": "long"}\n',
    b'{"text": "nan", "score": NaN, "more": [1e999, -Infinity]}\n{"text": 5}\n[1]\n{"id": ""}\nno json\n\xff\n',
    b'{"text": "' + b"x" * 90 + b'"}\n{"text": "behind"}',
)


def run_jsonl(data: bytes) -> object | None:
    """However a file is cut into ranges and batches, it has the same records."""
    with file_of(data[1:]) as path:
        batch_bytes, cut = 1 + (data[0] & 63 if data else 0), max(1 + (data[0] >> 2 if data else 0), len(data) // 8)
        whole = JsonlSource("read", [path], max_record_bytes=80)
        parts = JsonlSource("read", [path], max_record_bytes=80, batch_bytes=batch_bytes, batch_records=2)
        try:
            found = fates(whole, fragment_of(path, whole.READER))
        except InputError:
            return None
        size = len(data) - 1
        places = [*range(0, size, cut)] if size > cut else [0]
        again = [
            fate
            for start, end in itertools.pairwise([*places, -1])
            for fate in fates(parts, fragment_of(path, parts.READER, start=start, end=end))
        ]
    assert [_unnamed(fate) for fate in again] == [_unnamed(fate) for fate in found]
    kept = [(text, metadata) for verdict, _, text, metadata in found if verdict == "kept"]
    for verdict, _, _, raw in found:
        assert verdict == "kept" or len(raw) <= RAW_BYTES_MAX
    return kept or None


def _unnamed(fate: tuple[Any, ...]) -> tuple[Any, ...]:
    """What became of a record, without the name that it has from its place."""
    verdict, identity, what, more = fate
    return verdict, "" if identity.startswith("file:///proc") else identity, what, more


def run_lenient(data: bytes) -> object | None:
    """What the second reader takes can be written as JSON; what the first one reads, it reads alike."""
    try:
        strict: Any = orjson.loads(data.removeprefix(lines.BOM))
        why = ""
    except orjson.JSONDecodeError as error:
        strict, why = None, error.msg
    found = jsonl.reread(data, why)
    if strict is not None:
        assert found == strict or found != found
    orjson.dumps(found)
    if isinstance(found, dict) and "id" in found:
        digits = jsonl.digits_of(data, "id")
        assert digits is None or re.fullmatch(r"-?[0-9]+", digits) or digits == found["id"]
    return repr(found) if found is not None else None


def run_lines(data: bytes) -> object | None:
    """Ranges of a file own its lines, each one once."""
    if len(data) < 2:
        return None
    step, block, body = 1 + data[0], 1 + data[1], data[2:]
    found: list[bytes] = []
    for start in range(0, max(1, len(body)), step):
        end = min(start + step, len(body))
        file = io.BytesIO(body)
        first = lines.first_line_from(file, start, end, block) if start else 0
        at = first
        for run in lines.scan_lines(file, first, end, block_bytes=block, line_bytes_max=20):
            assert run.offset == at
            stored, at = body[at : run.stop], run.stop
            if not run.overlong_bytes:
                assert stored.removesuffix(b"\n").split(b"\n") == run.lines or not stored.strip()
            else:
                assert stored.startswith(run.lines[0])
                assert len(stored.removesuffix(b"\n")) == run.overlong_bytes
            found += run.lines
        assert at >= end or at == len(body) or not body[at:].strip()
    return found or None


# -- compressed streams --

STREAMS = (
    gzip.compress(b"one " * 9, mtime=0),
    pa.Codec("zstd").compress(b"two " * 9, asbytes=True),
    bz2.compress(b"three " * 9),
)
#: The readers by the first byte, and the library that is asked the same.
UNPACKERS: tuple[tuple[Callable[[io.BytesIO], unpack.Unpacker], Callable[[bytes], bytes] | None], ...] = (
    (unpack.Gzip, gzip.decompress),
    (unpack.Zstd, None),
    (lambda raw: unpack.WideZstd(raw, 1 << 23), None),
    (unpack.Bzip2, bz2.decompress),
)


def run_unpack(data: bytes) -> object | None:
    """A stream in pieces of bounded size; the same as the library that the format comes from."""
    if not data:
        return None
    make, reference = UNPACKERS[data[0] % len(UNPACKERS)]
    stream = make(io.BytesIO(data[1:]))
    parts: list[bytes] = []
    try:
        while sum(map(len, parts)) < PLAIN_BYTES_MAX and (part := stream.read()):
            assert len(part) <= 2 * unpack.STEP_BYTES
            parts.append(part)
    except OSError:
        return None
    found = b"".join(parts)
    if reference is not None and len(found) < PLAIN_BYTES_MAX:
        assert found == reference(data[1:])
    return found or None


def unpack_seeds() -> Iterable[bytes]:
    yield b"\x00" + STREAMS[0]
    yield b"\x00" + STREAMS[0] + bytes(9) + gzip.compress(b"another", mtime=0)
    yield b"\x01" + STREAMS[1]
    yield b"\x02" + STREAMS[1] + STREAMS[1]
    yield b"\x03" + STREAMS[2]
    yield b"\x03" + STREAMS[2] + bz2.compress(b"another")


def mutate_unpack(data: bytes, random: Random) -> bytes:
    """Another text in a stream that is sound; the beginning of it, or two of them."""
    kind = random.randrange(len(UNPACKERS))
    plain = random.randbytes(random.randrange(1, 40))
    made = gzip.compress(plain, mtime=0) if not kind else pa.Codec("zstd").compress(plain, asbytes=True)
    made = bz2.compress(plain) if kind == 3 else made
    made = made * random.choice((1, 1, 2))
    return bytes([kind]) + made[: random.choice((len(made), random.randrange(len(made))))]


CODINGS = ("gzip", "deflate", "br", "zstd", "identity", "x-gzip", "gzip, br", "br,gzip , gzip")


def run_payload(data: bytes) -> object | None:
    """A payload is bounded whatever its codings are."""
    if len(data) < 2:
        return None
    headers = {"Content-Encoding": CODINGS[data[0] % len(CODINGS)]}
    if data[1] & 1:
        headers["Transfer-Encoding"] = "chunked"
    if data[1] & 4:
        headers["Content-Encoding"] = data[2:].partition(b"\n")[0].decode("latin-1")
    try:
        found = warc_payloads.decode_payload(headers, data[2:], PLAIN_BYTES_MAX, is_truncated=bool(data[1] & 2))
    except warc_payloads.UndecodablePayload:
        return None
    assert len(found) <= max(PLAIN_BYTES_MAX, len(data))
    return found if found != data[2:] else None


def payload_seeds() -> Iterable[bytes]:
    page = b"<html>" + b"water " * 20
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for coding, packed in (
        (0, gzip.compress(page, mtime=0)),
        (1, zlib.compress(page)),
        (1, raw.compress(page) + raw.flush()),
        (2, pa.Codec("brotli").compress(page, asbytes=True)),
        (3, pa.Codec("zstd").compress(page, asbytes=True)),
        (7, gzip.compress(gzip.compress(pa.Codec("brotli").compress(page, asbytes=True), mtime=0), mtime=0)),
    ):
        yield bytes([coding, 0]) + packed
        yield bytes([coding, 1]) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
        yield bytes([coding, 3]) + b"5;x=y\r\n%s\r\n%x\r\n%s" % (packed[:5], len(packed), packed[5:-4])


# -- pages --


def _warc_record(kind: str, body: bytes, content: str = "application/http", *more: str) -> bytes:
    head = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Record-ID: <urn:uuid:a>",
        "WARC-Target-URI: http://x/",
        "WARC-Date: 2024-01-01T00:00:00Z",
        f"Content-Type: {content}",
        *more,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body + b"\r\n\r\n"


def warc_seeds() -> Iterable[bytes]:
    page = b"<html><head><title>t</title></head><body><main><p>deep \xc3\xa9 water</p></main><footer>f</footer></body>"
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
    packed = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(
        page, mtime=0
    )
    yield b"\x00" + _warc_record("response", http)
    yield b"\x01" + _warc_record("warcinfo", b"a: b\r\n", "application/warc-fields") + _warc_record("response", packed)
    yield b"\x02" + _warc_record("conversion", "naïve".encode(), "text/plain", "WARC-Truncated: length")
    yield b"\x03" + _warc_record("resource", b"<!-- c --><html><p>x", "text/html; charset=latin-1")
    yield b"\x04" + _warc_record("response", b"HTTP/1.1 404 no\r\n\r\nx") + _warc_record("response", http)
    yield b"\x07" + _warc_record("unheard", b"x", "text/plain") + _warc_record("conversion", b"text", "text/plain")


def run_warc(data: bytes) -> object | None:
    """A crawl is read to its end or refused; records behind it have no part in one before."""
    kind = data[0] if data else 0
    with file_of(data[1:]) as path:
        damaged = "quarantine" if kind & 4 else "stop"
        given: dict[str, Any] = {"main_content": not kind & 1, "untyped": bool(kind & 2), "damaged": damaged}
        source = WarcSource("read", [path], max_record_bytes=4096, batch_records=2, **given)
        try:
            found = fates(source, fragment_of(path, source.READER))
        except InputError:
            return None
    kept = [(text, metadata) for verdict, _, text, metadata in found if verdict == "kept"]
    for text, metadata in kept:
        assert text.strip()
        assert metadata is None or isinstance(orjson.loads(metadata), dict)
    return kept or None


def run_nesting(data: bytes) -> object | None:
    """The depth is no more than there are tags, and all that lies below the limit is said to be flat."""
    body = data.replace(b"(", b"<div>").replace(b")", b"</div>").replace(b"[", b"<Article a=")
    depth = nesting(body)
    opened = len(re.findall(rb"<(?:div|article)\b", body.lower()))
    assert 0 <= depth <= opened
    return depth if depth > NESTING_MAX else None


# -- what a file is --


def run_foreign(data: bytes) -> object | None:
    """A file that begins with a record of JSON Lines is never taken for another thing."""
    found = formats.data_format(data[: formats.HEAD_BYTES])
    for promised in ("gzip", "zstd", *(each.name for each in formats.FORMATS if each.magic)):
        assert isinstance(formats.misnamed(data[: formats.HEAD_BYTES], promised), str)
    head, newline, _ = data[: formats.HEAD_BYTES].partition(b"\n")
    try:
        if newline and isinstance(orjson.loads(head), dict):
            assert not found, found
    except orjson.JSONDecodeError:
        pass
    return (found, data[:16]) if found else None


def foreign_seeds() -> Iterable[bytes]:
    yield from (magic + b"x" * 9 for magic, _ in formats._MAGIC)
    yield bytes(257) + b"ustar"
    yield b"  <!DOCTYPE html>"
    yield b'[ {"text": 1}]'
    yield b'{\n  "text" : 1}'


def run_patterns(data: bytes) -> object | None:
    """A glob that names a path enters every folder above it; literal patterns name themselves."""
    text = data.decode("utf-8", "replace")
    pattern, _, path = text.partition("\n")
    if pattern.count("*") > 4:  # each one more costs the length of a name once more
        return None
    try:
        places = [patterns.place_of(part) for part in patterns.split_patterns(pattern)]
    except InputError:
        return None
    for place in places:
        assert place.prefix.startswith(place.root.partition("?")[0])
    glob = patterns.Glob.of(pattern)
    matches = glob.matches(path)
    if matches:
        folders = path.split("/")[:-1]
        assert all(glob.enters("/".join(folders[:count])) for count in range(1, len(folders) + 1))
    if not patterns.is_glob(pattern):
        assert matches == (glob.folder + path == pattern)
    patterns.Folder(glob.folder, formats.globs_of(formats.FORMATS)).matches(path)
    formats.format_of(path)
    return (pattern, path) if matches and patterns.is_glob(pattern) else None


def pattern_seeds() -> Iterable[bytes]:
    yield b"/data/**/*.jsonl\na/b/c.jsonl"
    yield b"/data/a[!b-d]?/x*.json\nae1/xy.json"
    yield b"corpus/part-[0-9].jsonl.gz\npart-3.jsonl.gz"


def run_shed(data: bytes) -> object | None:
    """A segment of what was shed says a number of records, or is refused by name."""
    with empty_folder() as folder:
        (folder / f"000000000001{SHED}").write_bytes(data)
        (folder / "closed").touch()
        source = SpoolSource("read", str(folder))
        (fragment,) = source.list()
        assert fragment is not None
        try:
            count = source._shed_records(fragment)
        except InputError:
            return None
        assert type(count) is int
        assert count >= 0
        if 0 < count < 10_000:
            assert {fate[2] for fate in fates(source, fragment)} == {SHED_REASON}
    return count or None


def run_url(data: bytes) -> object | None:
    """A host is lower case without a port, and is found again in what was made of it."""
    url = data.decode("utf-8", "replace")
    host, path = urls.split_url(url)
    assert host == host.lower()
    judge = urls.UrlFilter("urls", [], ["casino"], "url").judge(url)
    assert judge in (None, urls.REASONS[2])
    if host and re.fullmatch(r"[a-z0-9.-]+", host) and path.startswith("/") and "//" not in path:
        assert urls.split_url(f"{host}{path}") == (host.removeprefix("www."), path)
    form = normal_url(url)
    assert normal_url(f"{url}#behind") == form
    assert "#" not in form
    assert not form.partition("?")[0].endswith("/")
    return (host, path, form) if host else None


def url_seeds() -> Iterable[bytes]:
    yield b"https://www.Example.com:8080/a/b?c=d#e"
    yield b"example.com/path"
    yield b"http://user:secret@[::1]/x"


def numbered(seeds: Iterable[bytes]) -> Iterable[bytes]:
    """Each behind a byte that chooses how it is read."""
    return [bytes([17 * number]) + seed for number, seed in enumerate(seeds)]


GLOB_WORDS = (b"**/", b"[!", b"s3://b/", b"?endpoint=")
JSON_WORDS = (b'"text"', b'"id"', b'{"text": "a"}\n', b"NaN", b"Infinity", b"1e999", b"\xef\xbb\xbf", b'": "')
WARC_WORDS = (
    b"\r\n\r\n",
    b"WARC/1.0\r\n",
    b"Content-Length: ",
    b"Content-Encoding: gzip",
    b"charset=utf-16",
    b"<div>",
    b"<title>",
)

TARGETS = [
    Target("jsonl", ("headrace.stages.sources.jsonl",), run_jsonl, lambda: numbered(LINES), words=JSON_WORDS),
    Target(
        "lenient",
        ("headrace.stages.sources.jsonl",),
        run_lenient,
        lambda: LINES[2].splitlines()[:1],
        words=JSON_WORDS,
    ),
    Target("lines", ("headrace.stages.sources.lines",), run_lines, lambda: [b"\x05\x07" + seed for seed in LINES]),
    Target("unpack", ("headrace.stages.sources.objects.unpack",), run_unpack, unpack_seeds, mutate=mutate_unpack),
    Target("payload", ("headrace.stages.sources.warc_payloads",), run_payload, payload_seeds),
    Target("warc", ("headrace.stages.sources.warc",), run_warc, warc_seeds, words=WARC_WORDS),
    Target("nesting", ("headrace.stages.sources.warc",), run_nesting, lambda: [b"(" * 300, b"[>" * 300 + b")"]),
    Target(
        "data_format",
        ("headrace.stages.sources.objects.formats",),
        run_foreign,
        foreign_seeds,
        words=(b'{"a": "', b"ustar", b'"}\n'),
    ),
    Target(
        "patterns",
        ("headrace.stages.sources.objects.patterns",),
        run_patterns,
        pattern_seeds,
        words=GLOB_WORDS,
    ),
    Target(
        "shed_segment",
        ("headrace.stages.sources.spool",),
        run_shed,
        lambda: [b'{"records":3,"bytes":9,"key":"k"}\n' * 2],
    ),
    Target(
        "url",
        ("headrace.stages.quality.urls", "headrace.stages.dedup.core.scheme"),
        run_url,
        url_seeds,
        words=(b"://", b"www.", b"[::1]", b"@", b"utm_a=", b"%7E", b":443"),
    ),
]
