import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest

from headrace.cli.demo.demo import train
from headrace.cli.demo.windows import UNKNOWN, cut, frequent_tokens
from headrace.loader.loader import Loader

ENGINES = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(find_spec("torch") is None, reason="no torch"))]
PATIENCE_S = 300.0


@pytest.fixture
def learnable(make_dataset: Callable[..., str]) -> str:
    """27 tokens, each as likely as another: to learn which they are is worth 5 nats."""
    return make_dataset(sequences=(30, 20), seq_len=32, vocabulary=30)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_loss_falls(learnable: str, engine: str):
    result = train(learnable, 40, deadline_s=PATIENCE_S, engine=engine)
    assert result.losses[0] == pytest.approx(np.log(4096), abs=0.3)
    assert np.mean(result.losses[-5:]) < 4.0
    assert result.engine.startswith(engine)
    assert result.tokens_s > 0


@pytest.mark.parametrize("engine", ["numpy", pytest.param("torch", marks=pytest.mark.slow)])
def test_the_losses_follow_from_the_seed(learnable: str, engine: str):
    first, again, other = (
        train(learnable, 5, deadline_s=PATIENCE_S, engine=engine, seed=seed).losses for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_each_step_is_told_once_and_in_order(learnable: str):
    told: list[tuple[int, float]] = []
    result = train(learnable, 7, lambda step, loss: told.append((step, loss)), PATIENCE_S, engine="numpy")
    assert told == list(enumerate(result.losses, 1))


def test_training_ends_at_the_deadline(learnable: str):
    assert len(train(learnable, 1000, deadline_s=0.0, engine="numpy").losses) == 1


def test_a_dataset_without_two_tokens_in_a_row_is_refused(make_dataset: Callable[..., str]):
    with pytest.raises(ValueError, match="to learn from"):
        train(make_dataset(sequences=(3,), seq_len=1), 5, engine="numpy")


def test_an_unknown_engine_is_refused(learnable: str):
    with pytest.raises(ValueError, match="choose auto, torch or numpy"):
        train(learnable, 1, engine="jax")


def test_the_reduced_vocabulary_maps_back_and_counts_no_unknown_label(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=4)
    known = frequent_tokens(loader)
    few = known[:50]
    batch = next(iter(loader))
    (windows,) = cut(batch, few)
    is_known = np.isin(batch["tokens"], few)
    assert np.array_equal(few[windows.tokens[is_known]], batch["tokens"][is_known])
    assert (windows.tokens[~is_known] == UNKNOWN).all()
    assert not (windows.labels == UNKNOWN).any()


def test_without_torch_the_numpy_model_is_taken(learnable: str):
    code = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "sys.modules['torch'] = None\n"
        "from headrace.cli.demo.demo import train\n"
        f"print(train({learnable!r}, 2).engine)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("numpy"), done.stderr
