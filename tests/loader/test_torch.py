import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from headrace.loader.loader import Loader  # noqa: E402
from headrace.loader.torch import TorchLoader  # noqa: E402


def test_tensors_hold_what_the_numpy_batches_hold(tiny_dataset: str):
    plain = list(Loader(tiny_dataset, batch_size=4))
    tensors = list(TorchLoader(Loader(tiny_dataset, batch_size=4)))
    assert len(tensors) == len(plain) == 4
    for ours, theirs in zip(plain, tensors, strict=True):
        for name, value in ours.items():
            assert theirs[name] == value if name == "max_seqlen" else theirs[name].tolist() == value.tolist()


def test_indices_and_labels_are_int64_and_cu_seqlens_int32(tiny_dataset: str):
    batch = next(iter(TorchLoader(Loader(tiny_dataset, batch_size=4))))
    assert {batch[name].dtype for name in ("tokens", "labels", "position_ids")} == {torch.int64}
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["loss_mask"].dtype == torch.bool


def test_a_plain_data_loader_gives_equal_batches_and_last_state(tiny_dataset: str):
    loader = TorchLoader(Loader(tiny_dataset, batch_size=4))
    iterator = iter(DataLoader(loader, batch_size=None, num_workers=0))
    first, second = next(iterator), next(iterator)
    assert loader.state_dict()["position"] == 8
    expected = list(Loader(tiny_dataset, batch_size=4))
    assert first["tokens"].tolist() == expected[0]["tokens"].tolist()
    assert second["labels"].tolist() == expected[1]["labels"].tolist()
    loader.close()


def test_a_state_goes_on_through_the_torch_edge(tiny_dataset: str):
    loader = TorchLoader(Loader(tiny_dataset, batch_size=4))
    loader.load_state_dict({**loader.state_dict(), "position": 8})
    assert next(iter(loader))["positions"].tolist() == [8, 9, 10, 11]
    assert loader.statistics().batches == 1
    loader.close()


def test_a_machine_without_torch_is_told_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import headrace.loader.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: headrace.loader.torch needs PyTorch: pip install torch"


def test_a_loader_of_tensors_shows_its_device_and_its_loader(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=4)
    assert repr(TorchLoader(loader)) == f"<TorchLoader on cpu of {loader!r}>"


def test_a_device_that_batches_cannot_come_on_is_refused(tiny_dataset: str):
    with pytest.raises(ValueError, match="on the CPU or on a CUDA device, not on meta"):
        TorchLoader(Loader(tiny_dataset, batch_size=4), "meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_device_hold_what_the_numpy_batches_hold(tiny_dataset: str):
    plain = list(Loader(tiny_dataset, batch_size=4))
    for ours, theirs in zip(plain, TorchLoader(Loader(tiny_dataset, batch_size=4), "cuda"), strict=True):
        assert theirs["tokens"].device.type == "cuda"
        assert all(theirs[name].cpu().tolist() == ours[name].tolist() for name in ours if name != "max_seqlen")
