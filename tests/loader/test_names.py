"""Batches under the names that a trainer's models take, and loaders that begin their pass again at each loop."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from headrace.loader.loader import Loader  # noqa: E402
from headrace.loader.order.errors import LoaderError  # noqa: E402
from headrace.loader.tensors import NAMES  # noqa: E402
from headrace.loader.torch import TorchLoader  # noqa: E402


def named(uri: str, names: Any, **arguments: Any) -> dict[str, Any]:
    return next(iter(TorchLoader(Loader(uri, batch_size=4, **arguments), names=names)))


def ours(uri: str) -> dict[str, Any]:
    return next(iter(TorchLoader(Loader(uri, batch_size=4))))


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        ("transformers", ["input_ids", "labels", "position_ids"]),
        ("transformers-mask", ["input_ids", "labels", "attention_mask"]),
        ("torchtitan", ["input", "positions", "labels"]),
        ("nanotron", ["input_ids", "input_mask", "label_ids", "label_mask"]),
        ("megatron", ["tokens", "labels", "loss_mask", "position_ids"]),
    ],
)
def test_a_batch_has_the_names_of_a_trainer_and_no_others(tiny_dataset: str, names: str, fields: list[str]):
    batch = named(tiny_dataset, names)
    assert list(batch) == fields
    assert {tuple(value.shape) for value in batch.values()} == {(4, 16)}


def test_labels_that_a_model_shifts_itself_are_the_tokens_or_nothing(tiny_dataset: str):
    plain, batch = ours(tiny_dataset), named(tiny_dataset, "transformers")
    learnt = batch["labels"] != -100
    assert torch.equal(batch["labels"][learnt], plain["tokens"][learnt])
    # what a model does with them
    shifted = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
    assert torch.equal(shifted, plain["labels"])
    assert torch.equal(learnt.sum(), plain["loss_mask"].sum())


def test_flash_attention_gets_one_row_with_its_bounds(tiny_dataset: str):
    plain, batch = ours(tiny_dataset), named(tiny_dataset, "transformers-flash")
    assert batch["input_ids"].shape == batch["labels"].shape == batch["position_ids"].shape == (1, 64)
    assert torch.equal(batch["cu_seq_lens_q"], plain["cu_seqlens"])
    assert torch.equal(batch["cu_seq_lens_k"], plain["cu_seqlens"])
    assert batch["max_length_q"] == batch["max_length_k"] == plain["max_seqlen"]
    assert batch["cu_seq_lens_q"].dtype == torch.int32


def test_an_attention_mask_leaves_out_padding_alone(make_dataset: Callable[..., str]):
    uri = make_dataset(sequences=(5,), seq_len=8)
    last = list(TorchLoader(Loader(uri, batch_size=4, last="pad"), names="transformers-mask"))[-1]
    plain = list(TorchLoader(Loader(uri, batch_size=4, last="pad")))[-1]
    pieces = plain["documents"][:, 0].repeat_interleave(plain["cu_seqlens"].diff())
    assert torch.equal(last["attention_mask"].reshape(-1), (pieces != -1).long())
    assert not last["attention_mask"][1:].any()
    assert last["attention_mask"][0].any()


@pytest.mark.parametrize(
    ("names", "labels", "mask"), [("megatron", "labels", "loss_mask"), ("nanotron", "label_ids", "label_mask")]
)
def test_a_label_that_the_mask_leaves_out_is_a_token(tiny_dataset: str, names: str, labels: str, mask: str):
    plain, batch = ours(tiny_dataset), named(tiny_dataset, names)
    assert torch.equal(batch[mask].bool(), plain["loss_mask"])
    assert torch.equal(batch[labels], plain["labels"].clamp(min=0))
    assert batch[mask].dtype == (torch.float32 if names == "megatron" else torch.bool)


def test_a_mapping_names_fields_of_a_readers_own(tiny_dataset: str):
    plain = ours(tiny_dataset)
    batch = named(tiny_dataset, {"x": "tokens", "place": "state"}, fields=())
    assert list(batch) == ["x", "place"]
    assert torch.equal(batch["x"], plain["tokens"])
    assert batch["place"].tolist() == [0, 4, 1]


@pytest.mark.parametrize(
    ("names", "arguments", "said"),
    [
        ("lightning", {}, "names is one of 'transformers', .*; got 'lightning'"),
        ({"x": "token"}, {}, "no field token; there are attention_mask, "),
        ("transformers", {"fields": ("labels",)}, r"needs Loader\(..., fields=...\) with position_ids"),
        ("transformers-mask", {"fields": ("labels", "documents")}, "with cu_seqlens"),
    ],
)
def test_names_that_cannot_be_are_refused_at_once(tiny_dataset: str, names: Any, arguments: Any, said: str):
    with pytest.raises(ValueError, match=said):
        TorchLoader(Loader(tiny_dataset, batch_size=4, **arguments), names=names)


@pytest.mark.parametrize("names", NAMES)
def test_each_trainers_names_need_only_what_they_say(tiny_dataset: str, names: str):
    fields = NAMES[names].needs() - {"tokens"}
    assert named(tiny_dataset, names, fields=fields).keys() == named(tiny_dataset, names).keys()


def test_named_batches_of_workers_keep_the_state_up(tiny_dataset: str):
    loader = TorchLoader(Loader(tiny_dataset, batch_size=4), names="transformers")
    batches = iter(loader.over_workers(2))
    first = [next(batches) for _ in range(2)]
    assert list(first[0]) == ["input_ids", "labels", "position_ids"]
    assert loader.state_dict()["position"] == 8
    assert loader.statistics().samples == 8
    batches.close()
    with pytest.raises(LoaderError, match="which `names` may leave out"):
        loader.state_dict({"input_ids": first[0]["input_ids"]})


def places(batches: Any, count: int | None = None) -> list[list[int]]:
    found = []
    for batch in batches:
        found.append(batch["positions"].tolist())
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_loader_that_restarts_shows_the_same_samples_again(tiny_dataset: str, workers: int | None):
    loader = TorchLoader(Loader(tiny_dataset, batch_size=4, seed=5, last="pad", restarts=True))
    loops = loader if workers is None else loader.over_workers(workers)
    whole = places(loops)
    assert len(whole) == len(loader) == 5
    assert places(loops, 2) == whole[:2]
    assert len(loader) == len(loops) == 5
    assert places(loops) == places(loops) == whole


@pytest.mark.parametrize("persistent", [False, True])
def test_a_data_loader_over_one_that_restarts_loops_again(tiny_dataset: str, persistent: bool):
    loader = TorchLoader(Loader(tiny_dataset, batch_size=4, restarts=True))
    loops = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=persistent)
    whole = places(loops)
    assert places(loops, 2) == whole[:2]
    assert places(loops) == whole == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_the_state_of_a_loader_that_restarts_is_its_beginning(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=4, pass_=3, restarts=True)
    at_begin = loader.state_dict()
    assert len(places(loader, 3)) == 3
    assert loader.state_dict() == at_begin
    assert len(places(loader)) == 4
    loader.next_pass()
    loader.reach_pass(9)
    assert (loader.state_dict(), loader.pass_) == (at_begin, 3)
    other = Loader(tiny_dataset, batch_size=4, restarts=True)
    other.load_state_dict({**at_begin, "position": 8, "step": 2})
    assert places(other, 2) == places(loader, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert next(iter(other))["state"].tolist() == [3, 4, 1]


def test_a_copy_of_a_loader_that_restarts_restarts(tiny_dataset: str):
    copy = Loader(tiny_dataset, batch_size=4, restarts=True).replica()
    assert places(copy, 1) == places(copy, 1)


@pytest.mark.parametrize("samples", [0, 8, 16, 20, 40])
def test_a_loader_that_seeks_goes_on_behind_what_was_read(tiny_dataset: str, samples: int):
    reader, seeker = (TorchLoader(Loader(tiny_dataset, batch_size=4, seed=2, pass_=1)) for _ in range(2))
    seeker.seek(samples)
    for _ in range(samples // 16):
        list(reader)
    for _, _ in zip(range(samples % 16 // 4), reader, strict=False):
        pass
    read, sought = next(iter(reader)), next(iter(seeker))
    assert sought["state"].tolist() == read["state"].tolist()
    assert torch.equal(sought["tokens"], read["tokens"])


@pytest.mark.parametrize("samples", [-4, 6])
def test_a_count_that_no_steps_make_is_refused(tiny_dataset: str, samples: int):
    with pytest.raises(ValueError, match=r"goes behind steps of 4 samples|at least 0"):
        TorchLoader(Loader(tiny_dataset, batch_size=4)).seek(samples)


def test_a_loader_that_has_read_does_not_seek(tiny_dataset: str):
    loader = TorchLoader(Loader(tiny_dataset, batch_size=4))
    next(iter(loader))
    with pytest.raises(ValueError, match="a loader that read nothing"):
        loader.seek(8)


def test_a_loader_that_restarts_numbers_steps_from_the_state(tiny_dataset: str):
    trained, validation = Loader(tiny_dataset, batch_size=4), Loader(tiny_dataset, batch_size=4, restarts=True)
    list(trained)
    places(trained, 2)
    validation.load_state_dict(trained.state_dict())
    assert [next(iter(validation))["state"].tolist() for _ in range(2)] == [[1, 4, 5], [1, 4, 5]]


@pytest.mark.parametrize(("loop", "is_refused"), [("fit_loop", True), ("evaluation_loop", False)])
def test_a_training_loop_refuses_a_loader_that_restarts(tiny_dataset: str, loop: str, is_refused: bool):
    loader = TorchLoader(Loader(tiny_dataset, batch_size=4, restarts=True))
    # as it looks where a trainer's own module iterates
    trainer: dict[str, Any] = {"__name__": f"lightning.pytorch.loops.{loop}"}
    exec("def first(loader):\n    return next(iter(loader))", trainer)
    if is_refused:
        with pytest.raises(LoaderError, match="give it to validation"):
            trainer["first"](loader)
    else:
        assert trainer["first"](loader)["positions"].tolist() == [0, 1, 2, 3]
