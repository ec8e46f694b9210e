"""The loader's place in the checkpoints of a `transformers.Trainer`; needs `transformers`."""

from typing import Any, Final, Protocol

from headrace.loader.order import LoaderError

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # pyright: ignore[reportMissingImports]
    from transformers.trainer_callback import ExportableState  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("headrace.loader.hugging_face needs transformers: pip install transformers accelerate") from error

_LOADER: Final = "loader"


class _Keeper(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def begin_next(self) -> None: ...
    def keep(self) -> None: ...


class LoaderState(TrainerCallback, ExportableState):
    """Writes the state of a `TorchLoader`, or of what its `over_workers` gave, into each checkpoint, and reads it back.

    The trainer must not skip batches by itself then: `TrainingArguments(ignore_data_skip=True)`. So a run goes on in
    any pass and with any number of processes. Raises LoaderError where the checkpoint holds no state, or the trainer
    is about to skip.
    """

    def __init__(self, loader: _Keeper) -> None:
        self._loader = loader

    def state(self) -> dict[str, Any]:
        """What the trainer writes into trainer_state.json."""
        return {"args": {}, "attributes": {_LOADER: self._loader.state_dict()}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Go on where the checkpoint was saved."""
        self._loader.keep()
        if not state.global_step:
            return control
        if not args.ignore_data_skip:
            raise LoaderError(
                f"the trainer goes on from step {state.global_step} and is about to skip batches that this callback "
                "has skipped already: pass TrainingArguments(ignore_data_skip=True)"
            )
        kept: Any = state.stateful_callbacks or {}
        saved = kept.get(type(self).__name__)
        if not isinstance(saved, dict):
            raise LoaderError(
                f"the checkpoint of step {state.global_step} holds no state of one loader: it was saved without this "
                "callback, or with several; load the loader's state yourself"
            )
        self._loader.load_state_dict(saved["attributes"][_LOADER])
        # the trainer counts steps, and its next epoch is the next pass
        self._loader.begin_next()
        return control
