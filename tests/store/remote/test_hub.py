"""Files of the hub: as its own client finds them, at their hashes, with the token where it belongs."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterator

import pytest

from headrace.store.contract.errors import InvalidUri, ObjectMissing, StoreRefused
from headrace.store.remote import hub
from headrace.store.remote.hub import HubStore
from tests.kits.inputs.web_server import HubServer, Reply, serving
from tests.store.remote.test_http_store import HASTY

FILES = {"README.md": b"card", "data/a.jsonl": b"0123456789", "data/b.jsonl": b"b", "data/more/c.jsonl": b"c", "z": b""}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[HubServer]:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    server = HubServer(dict(FILES))
    with serving(server):
        yield server


def store_of(server: HubServer) -> HubStore:
    return HubStore(f"hf://datasets?endpoint={server.url}", HASTY)


def test_a_repository_is_listed_in_the_order_of_keys_over_pages(server: HubServer) -> None:
    found = list(store_of(server).list("o/n/"))
    assert [info.key for info in found] == [f"o/n/{name}" for name in FILES]
    assert [info.key for info in store_of(server).list("o/n@v1/data/")] == [
        f"o/n@v1/{name}" for name in FILES if name.startswith("data/")
    ]


def test_listing_head_and_bytes_agree_on_the_version(server: HubServer) -> None:
    store = store_of(server)
    for info in store.list("o/n/data/"):
        data = FILES[info.key.removeprefix("o/n/")]
        assert info.version == hashlib.sha256(data).hexdigest()
        assert store.head(info.key) == info
        assert store.get_with_info(info.key, 0, 100) == (data, info)
    assert store.get_with_info("o/n/data/a.jsonl", 3, 2)[0] == b"34"
    server.files["data/a.jsonl"] = b"other"
    assert store.get_with_info("o/n/data/a.jsonl", 0, 9)[1].version == hashlib.sha256(b"other").hexdigest()


def test_folders_repositories_and_missing_files_are_none(server: HubServer) -> None:
    store = store_of(server)
    assert [store.head(key) for key in ("o/n", "o/n/data", "o/n/none")] == [None, None, None]
    with pytest.raises(ObjectMissing):
        store.get_with_info("o/n/none", 0, 1)


def test_the_token_goes_to_the_hub_alone(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_secret"
    with pytest.raises(StoreRefused, match="GatedRepo: check owner, name and revision; set HF_TOKEN"):
        list(store_of(server).list("o/n/"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert store_of(server).get_with_info("o/n/data/a.jsonl", 0, 3)[0] == b"012"
    sent = {asked.path: asked.headers.get("Authorization") for asked in server.asked}
    assert sent["/cdn/data/a.jsonl"] is None
    assert sent["/datasets/o/n/resolve/main/data/a.jsonl"] == "Bearer hf_secret"


def test_a_hub_that_an_address_names_gets_no_token(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(StoreRefused, match="it got no token: that goes to the hub of HF_ENDPOINT alone, over https"):
        list(store_of(server).list("o/n/"))
    assert [asked.headers.get("Authorization") for asked in server.asked] == [None]


@pytest.mark.parametrize(
    ("endpoint", "goes"),
    [
        ("https://hub.example", True), ("http://127.0.0.1:8", True), ("http://[::1]:8", True),
        ("http://localhost", True), ("http://hub.example", False), ("http://127.0.0.1.example", False),
    ],
)  # fmt: skip
def test_a_token_goes_encrypted_or_not_beyond_this_host(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, *, goes: bool
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert ("Authorization" in HubStore("hf://datasets")._headers()) is goes


def test_the_token_of_a_login_is_found(
    server: HubServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    (tmp_path / "token").write_text("hf_login\n")
    server.token = "hf_login"
    assert store_of(server).head("o/n/data/a.jsonl") is not None


@pytest.mark.parametrize("broken", ["hf_hunter2\nmore", "hf\x1b_hunter2", "hf_“hunter2”", "hf_hunter2" * 1000])
@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "token"])
def test_a_broken_token_is_named_and_not_repeated(
    server: HubServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str, broken: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    if place == "token":
        (tmp_path / place).write_text(broken)
    else:
        monkeypatch.setenv(place, broken)
    with pytest.raises(StoreRefused, match=f"{place} holds ") as caught:
        store_of(server).head("o/n/data/a.jsonl")
    assert "hunter2" not in str(caught.value)
    assert server.asked == []


def test_other_repositories_are_refused_with_what_to_check(server: HubServer) -> None:
    with pytest.raises(StoreRefused, match="RepoNotFound: check owner, name and revision"):
        store_of(server).head("o/other/data/a.jsonl")


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"{}", "gives no list"),
        (b"no json", "gives no list"),
        (b"[1]", "names something without a path"),
        (b'[{"type": "file"}]', "names something without a path"),
    ],
)
def test_a_listing_that_is_none_is_refused(server: HubServer, page: bytes, why: str) -> None:
    server.fault = lambda asked: Reply(200, page)
    with pytest.raises(StoreRefused, match=why):
        list(store_of(server).list("o/n/"))


def test_a_listing_does_not_lead_to_another_server_or_round(server: HubServer) -> None:
    server.fault = lambda asked: Reply(200, b"[]", {"Link": '<http://elsewhere/x>; rel="next"'})
    with pytest.raises(StoreRefused, match="goes on at another server"):
        list(store_of(server).list("o/n/"))
    server.fault = lambda asked: Reply(200, b"[]", {"Link": f'<{server.url}{asked.path}?a=1>; rel="next"'})
    assert list(store_of(server).list("o/n/")) == []


def test_a_size_that_is_none_is_asked_for_anew(server: HubServer) -> None:
    page = b'[{"type": "file", "path": "data/a.jsonl", "size": -5, "oid": "x"}, {"type": "file", "path": "/../z"}]'
    server.fault = lambda asked: Reply(200, page) if asked.path.startswith("/api/") else None
    assert [(info.key, info.size) for info in store_of(server).list("o/n/")] == []
    page = page.replace(b"data/a.jsonl", b"z")
    assert [(info.key, info.size) for info in store_of(server).list("o/n/")] == [("o/n/z", 0)]


@pytest.mark.parametrize(
    ("place", "key", "parts"),
    [
        ("datasets", "o/n/a/b", ("datasets/", "o/n", "main", "a/b")),
        ("datasets", "o/n@v1.0/a", ("datasets/", "o/n", "v1.0", "a")),
        ("datasets", "o/n@refs/convert/parquet/a", ("datasets/", "o/n", "refs/convert/parquet", "a")),
        ("o", "model/a", ("", "o/model", "main", "a")),
    ],
)
def test_a_key_names_repository_revision_and_path(place: str, key: str, parts: tuple[str, ...]) -> None:
    assert HubStore(f"hf://{place}")._parts(key) == parts


@pytest.mark.parametrize("uri", ["hf://datasets?token=x", "hf://datasets?endpoint=ftp://x", "hf://buckets"])
def test_what_names_no_hub_is_refused(uri: str) -> None:
    with pytest.raises(InvalidUri):
        HubStore(uri)._parts("o/n/a")


def test_the_hubs_own_client_finds_the_same(server: HubServer) -> None:
    api = pytest.importorskip("huggingface_hub").HfApi(endpoint=server.url, token=False)
    tree = [(item.path, item.size, item.lfs.sha256) for item in api.list_repo_tree("o/n", "data", repo_type="dataset")
            if hasattr(item, "size")]  # fmt: skip
    ours = {info.key.removeprefix("o/n/"): (info.size, info.version) for info in store_of(server).list("o/n/data/")}
    assert {path: (size, sha) for path, size, sha in tree}.items() <= ours.items()
    assert len(tree) == 2


def test_pages_without_end_are_bounded(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PAGES_MAX", 5)
    counter = iter(range(100))
    server.fault = lambda asked: Reply(
        200, b"[]", {"Link": f'<{server.url}{asked.path}?cursor={next(counter)}>; rel="next"'}
    )
    with pytest.raises(StoreRefused, match="more than 5 pages"):
        list(store_of(server).list("o/n/"))
