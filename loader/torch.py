"""The loader's edge to PyTorch; everything below it is numpy and imports no torch.

In one process a thread makes the batches, and the loader knows which of them the training loop received. `DataLoader`
workers are processes: worker w of n makes the steps w, w + n, w + 2n, ..., which `DataLoader` hands out in turn, so the
loop sees the same sequence. What it received is what it looked into (`headrace.loader.state.received`): each batch
brings the state behind it, and the process of the loop stands there from then on, so that workers that begin later, and
the state that is saved, go on from there. `state_dict(batch)` is the state once that batch was received, looked into or
not. `StatefulDataLoader` keeps a state a worker; `loader_state` finds the one place in it that any world size can load.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any, Final, Literal, TypeVar

from headrace.loader.arguments import whole
from headrace.loader.batch import Batch
from headrace.loader.dataset import WAIT_S_MAX
from headrace.loader.loader import Loader
from headrace.loader.order import LoaderClosed, LoaderError
from headrace.loader.state import find_state, packed
from headrace.loader.statistics import LoaderStatistics

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError("headrace.loader.torch needs PyTorch: pip install torch") from error

from headrace.loader.state import Arrived, Sent, end_with_parent, listen, new_token
from headrace.loader.tensors import Copier, CountedDataLoader, check_loop, check_wrapper, chosen_names, tensors

T = TypeVar("T")

#: of the random number of a DataLoader's loop; the rest of 63 bits counts how often a loader was told where it stands
_LOOP_BITS: Final = 39
#: of a state with its journal, as JSON text; where it is longer a loop that was not begun is not known
_STATE_BYTES_MAX: Final = 1 << 16
_PLACE: Final = ("pass", "position", "step")
#: workers that have a place of their own to note their loop in; of more, some share one
_NOTES: Final = 1024


class _Batches:
    """What trainers ask a `DataLoader` for, as of one that is made over batches, without workers of its own."""

    batch_size: None = None
    drop_last = False
    num_workers = 0
    prefetch_factor: None = None


class TorchLoader(_Batches, IterableDataset[dict[str, Any]]):
    """Batches of a `Loader` as dicts of tensors on `device` (the CPU by default); `max_seqlen` stays an int.

    On a CUDA device the thread that makes batches also copies them, from pinned memory and on a stream of its own,
    so that up to `prefetch` batches are on the device before they are asked for. Iterate it directly, which is the
    fastest way, or through `DataLoader(loader, batch_size=None, num_workers=n)` or torchdata's `StatefulDataLoader`.

    `names` gives the fields that a trainer's models take, under their names: one of `headrace.loader.tensors.NAMES`, or
    a mapping of names to fields. Raises ValueError where the loader does not make what these need.
    """

    def __init__(
        self, loader: Loader, device: "torch.device | str" = "cpu", *, names: str | Mapping[str, str] | None = None
    ) -> None:
        self.loader = loader
        self._names = chosen_names(names, loader.fields)
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"batches come on the CPU or on a CUDA device, not on {self.device}; move them in the loop"
            )
        self._first_pass = loader.pass_
        self._worker: dict[str, int] | None = None
        self._owner: int | None = None
        #: how often this process was told where the training loop stands; worker processes get a copy
        self._told = 1
        #: of these, how often by a state that was loaded; and whether last by a batch that came
        self._loads = 0
        self._is_counted = False
        #: of a worker: how often the loop's process had been told when its loop began
        self._told_then = 0
        #: of a worker: whether a state was loaded since it began, in the loop's process
        self._is_left = False
        #: and whether the loop before began with a state, and nobody knows how far it came
        self._is_unknown = False
        #: when the loop began to wait for what comes next, where that is known
        self._asked_s: float | None = None
        #: all but the place of the last state that was followed; of a worker: the last that was sent, and its journal
        self._followed: Mapping[str, Any] = {}
        self._sent: tuple[object, Mapping[str, Any]] = (None, {})
        self._share_memory()
        loader.watch(self)

    def __repr__(self) -> str:
        return f"<TorchLoader on {self.device} of {self.loader!r}>"

    def _share_memory(self) -> None:
        #: set by workers of a loop that nobody counts for, each its own: what `_told` was when it began and, lowest,
        #: which loop it is. One number, since workers that begin at once must not read half of what another writes
        self._uncounted = torch.zeros(_NOTES, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        #: what workers that persist look at between their loops: loads, told, and the place (pass, position, step)
        self._stands = torch.tensor([self._loads, 0, 0, 0, 0]).share_memory_()  # type: ignore[no-untyped-call]
        #: a row a worker that got a state: what `_told` was then, pass, position, step; and all else of the state
        self._placed = torch.zeros((_NOTES, 4), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._placed_with = torch.zeros(_STATE_BYTES_MAX, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        #: by what batches that its workers made find it
        self._token = new_token()
        listen(self._token, self)
        #: of a worker: whether it got a state of its own, and whether it made batches that nobody may have received
        self._is_placed = self._is_within = False
        #: of a worker: the loop that it is in (the loops of a process that persists have one number), and whether it
        #: is about to begin one
        self._loop: int | None = None
        self._is_entering = False
        #: whether a trainer's callback writes the state into its checkpoints
        self._is_kept = False

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            # the process that is about to be spawned does not see who iterates
            check_loop(is_kept=self._is_kept, restarts=self.loader.restarts)
            return dict(vars(self))
        own = ("_uncounted", "_stands", "_placed", "_placed_with", "_token")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.loader.watch(self)
        if "_token" in state:
            listen(self._token, self)
        else:
            # a copy, with loops of its own
            self._share_memory()

    def __len__(self) -> int:
        """Batches of the pass that the next loop reads, those among them that were read already.

        Trainers that know it do not look a batch ahead, and count a pass that goes on from a checkpoint to its end.
        """
        return len(self.loader)

    @property
    def dataset(self) -> "TorchLoader":
        """What a `DataLoader` that gives the same batches is made over; trainers ask for it, as for `batch_size`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of the `epoch`-th pass behind the first that was read, unless that has begun."""
        self.loader.reach_pass(self._first_pass + epoch)

    def keep(self) -> None:
        """Take note that a trainer's callback writes the state into its checkpoints."""
        self._is_kept = True

    def begin_next(self) -> None:
        """Go to the next pass where no step of this one is left: for trainers that count steps themselves."""
        if not self.loader.steps_left:
            self.loader.next_pass()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        check_wrapper(self)
        check_loop(is_kept=self._is_kept, restarts=self.loader.restarts)
        info = get_worker_info()
        if info is not None and self.loader.restarts:
            self._enter(info.id)
            self.loader.share_steps(info.id, info.num_workers)
            return self._verified()
        if info is not None:
            self._is_entering = True
            self._enter(info.id)
            self._go_where_the_loop_stands()
            if "ended" in self.loader.state_dict() or (self._is_counted and not self.loader.steps_left):
                # now, and not with the first batch: before that a StatefulDataLoader asks where this worker stands
                self.loader.next_pass()
            # the seeds of a loop's workers follow each other
            return self._in_worker(info.id, info.num_workers, info.seed - info.id)
        if self.device.type == "cuda":
            return self._on_device()
        return self.loader.iterate(self._tensors)

    def _tensors(self, batch: Batch) -> dict[str, Any]:
        return tensors(batch) if self._names is None else self._names.of(tensors(batch))

    def _verified(self, transform: Callable[[Batch], T] | None = None) -> Iterator[Any]:
        """In a worker: whoever calls wait_verified in the loop's process learns nothing of checks in this one."""
        if self.device.type == "cuda":
            raise LoaderError("DataLoader workers cannot give batches on a CUDA device; use num_workers=0")
        for batch in self.loader.iterate(transform or self._tensors):
            self.loader.wait_verified()
            yield batch

    def _in_worker(self, number: int, of: int, loop: int) -> Iterator[dict[str, Any]]:
        self._enter_loop(number, loop)
        place = {"id": number, "of": of, "stride": self.loader.stride}
        if self._worker is None:
            self.loader.share_steps(number, of)
        elif self._worker == place:
            self.loader.share_steps(of - 1, of)
        else:
            raise LoaderError(
                f"the state of worker {self._worker['id']} of {self._worker['of']} (steps of {self._worker['stride']} "
                f"samples) was loaded into worker {number} of {of} (steps of {place['stride']}); pass "
                "headrace.loader.torch.loader_state(state) to the loader, and make the DataLoader anew"
            )
        self._is_within = True
        for rows, batch in self._verified(lambda batch: (int((batch["positions"] >= 0).sum()), self._tensors(batch))):
            if int(self._stands[0]) != self._loads:
                raise LoaderClosed("this loop was ended by a change of state; iterate anew")
            self._worker = place
            yield Sent(batch, (self._token, self._loads, rows, self._packed()))
        self._worker = None
        self._is_within = False

    def _packed(self) -> dict[str, Any]:
        """The state, of which all but the place is made anew where the journal is another."""
        loader = self.loader
        if self._sent[0] is not loader.journal:
            self._sent = loader.journal, packed(loader.state_dict())
        return {**self._sent[1], "pass": loader.pass_, "position": loader.position, "step": loader.step}

    def _go_where_the_loop_stands(self) -> None:
        """In a worker that persists: go on where the loop before came to, which others know, and not this worker."""
        loads, told, pass_, position, step = self._stands.tolist()
        # refused with the first batch: an error before that ends a worker that persists without a word
        self._is_left = self._loop is not None and loads != self._loads
        if self._loop is not None and told > self._told_then and pass_ >= self.loader.pass_:
            self.loader.load_state_dict(self.loader.state_at(pass_, position, step), grown="finish")
            self._worker, self._is_within, self._is_counted = None, False, True
        self._told_then = told
        if self._loop is None and not self._is_placed:
            self._follow_placed()

    def _note_placed(self, number: int) -> None:
        """In a worker that got a state of its own: note it, at once, for a loop that follows this one."""
        state = packed(self.loader.state_dict()) | {"ended": False}
        place = [state.pop(field) for field in ("pass", "position", "step")]
        text = json.dumps(state).encode()
        if number < _NOTES and len(text) < _STATE_BYTES_MAX:
            # of each worker the same
            self._placed_with[: len(text) + 1] = torch.tensor([*text, 0], dtype=torch.uint8)
            self._placed[number] = torch.tensor([self._told, *place])

    def _follow_placed(self) -> None:
        """In a worker without a state of its own: where the loop before got one and nothing of that came, look at it.

        A loop behind the last batch of a pass gives none, and this one is over the next pass. Of another nobody knows.
        """
        placed = [row[1:] for row in self._placed.tolist() if row[0] == self._told]
        if not placed:
            return
        text = bytes(self._placed_with.tolist()).partition(b"\0")[0]
        place = dict(zip(("pass", "position", "step"), max(placed), strict=True))
        self.loader.load_state_dict({**json.loads(text), **place}, grown="finish")
        self._is_placed = self._is_counted = not self.loader.steps_left
        self._is_unknown = not self._is_placed

    def _noted(self, loop: int) -> int:
        """What a worker notes of a loop that begins now."""
        return (self._told << _LOOP_BITS) + loop % (1 << _LOOP_BITS)

    def _require_place(self, number: int, loop: int) -> None:
        """Raise LoaderError where a loop went before this one and nobody knows how far that came."""
        if self._is_left:
            raise LoaderError(
                "a state was loaded, or positions skipped or weights changed, since the workers of this DataLoader "
                "began, and they know nothing of it: make the DataLoader anew"
            )
        if self._is_within:
            raise LoaderError(
                "the loop before this one ended within its pass, and its workers have made batches that it did not "
                "receive: make a DataLoader anew after load_state_dict(state_dict(batch)), batch being the last that "
                "came, or iterate over_workers(n)"
            )
        mine, noted = self._noted(loop), self._uncounted.tolist()
        others = [note for note in noted if note >> _LOOP_BITS == self._told and note != mine]
        # a loop has the number of another where both were seeded alike; its workers are new processes all the same
        again = noted[number % _NOTES] == mine and self._loop != mine and number < _NOTES
        if (others or again or self._is_unknown) and not self._is_placed:
            raise LoaderError(
                "a second loop over DataLoader workers would give the batches of the first again, since only that "
                "knows what it received: pass persistent_workers=True, and the next loop is the next pass; or iterate "
                "over_workers(n); or call load_state_dict before the loop, with state_dict(batch) of the last batch to "
                "go on (where a StatefulDataLoader has a state from the end of its loop, with loader_state of it), or "
                "with the state of its beginning to give the same again"
            )

    def _enter_loop(self, number: int, loop: int) -> None:
        """Note that a loop begins. Raises LoaderError where nobody knows where."""
        self._require_place(number, loop)
        self._loop, self._is_entering = self._noted(loop), False
        # not one that begins late, of a loop before
        if int(self._uncounted[number % _NOTES]) >> _LOOP_BITS <= self._told:
            self._uncounted[number % _NOTES] = self._loop

    def _enter(self, number: int) -> None:
        """Threads and locks did not come along into a forked process: make them anew, once."""
        if self._owner != number:
            self._owner = number
            self.loader = self.loader.replica()
            end_with_parent()

    def _on_device(self) -> Iterator[dict[str, Any]]:
        # "cuda" is the device that this thread has set; another thread, such as the one that copies, has its own
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        device = torch.device("cuda", index)
        copier = Copier(device, self._names)
        for batch, copied in self.loader.iterate(copier.copy):
            current = torch.cuda.current_stream(device)
            current.wait_event(copied)
            for value in batch.values():
                if isinstance(value, torch.Tensor):
                    # the allocator must not reuse this memory while the step's stream still reads it
                    value.record_stream(current)
            yield batch

    def over_workers(self, num_workers: int, **options: Any) -> "OverWorkers":
        """Batches through a `DataLoader` with that many worker processes, and a state that keeps up with the loop.

        `options` are those of `DataLoader`. Raises ValueError for `in_order=False`: no one place is behind all of them.
        """
        if not options.get("in_order", True):
            raise ValueError("over_workers gives batches in order; no state could say which of others came")
        return OverWorkers(self, num_workers, options)

    def _over_workers(self, num_workers: int, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        loader = self.loader
        if loader.is_behind:
            loader.next_pass()
        loader.end_iteration()
        batches = iter(CountedDataLoader(self, batch_size=None, num_workers=num_workers, **options))
        # it counts, whenever its workers begin
        self._told += 1
        if loader.restarts or not num_workers:
            # without workers the loader itself knows
            yield from batches
            return
        asked_s = time.perf_counter()
        for batch in batches:
            self._asked_s = asked_s
            self.received(batch)
            iteration = loader.iterations
            yield batch
            if iteration != loader.iterations:
                raise LoaderClosed("this loop was ended by close, a change of state or a newer loop")
            asked_s = time.perf_counter()
        self.load_state_dict({**self.state_dict(), "ended": True})

    def received(self, batch: Mapping[str, Any]) -> None:
        """Take note that the loop received a batch of worker processes; one that looks into it need not say so."""
        if isinstance(batch, Arrived):
            batch.look()
        elif isinstance(batch, Mapping) and {"positions", "state"} <= batch.keys():
            self.came(self._loads, int((batch["positions"] >= 0).sum()), self.state_dict(batch))
        else:
            raise LoaderError('a batch without its "positions" and "state": leave them in it in collate_fn')

    def came(self, loads: int, rows: int, state: Mapping[str, Any]) -> None:
        """Go where `state` stands, behind a batch of `rows`, unless another was loaded since its worker began."""
        if loads != self._loads:
            return
        asked_s, self._asked_s = self._asked_s, None
        came_s = time.perf_counter()
        self.loader.counts.count(rows, came_s if asked_s is None else asked_s, came_s)
        rest = {name: value for name, value in state.items() if name not in _PLACE}
        self.loader.follow(state, is_known=rest == self._followed)
        self._followed = rest
        self._tell(is_counted=True)

    def changed(self) -> None:
        """A state was loaded, or the journal changed, and those who make batches know nothing of it."""
        self._followed = {}
        self._loads += 1
        self._tell(is_counted=self.loader.is_behind)

    def _tell(self, *, is_counted: bool) -> None:
        """The loop stands where this loader does."""
        self._told += 1
        self._is_counted = is_counted
        place = self.loader.pass_, self.loader.position, self.loader.step
        self._stands.copy_(torch.tensor([self._loads, self._told, *place]))

    def state_dict(self, batch: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See `Loader.state_dict`; the journal is JSON text, so that each state has the same fields, also for
        torch.distributed.checkpoint. `batch` is the last one that the loop received, and needed where it came through
        `DataLoader` workers. Raises LoaderError where it is needed and not given.
        """
        if batch is not None:
            if "state" not in batch:
                raise LoaderError(
                    f'state_dict takes a batch with its "state", which `names` may leave out; got {list(batch)}'
                )
            pass_, position, step = (int(value) for value in batch["state"])
            return packed(self.loader.state_at(pass_, position, step))
        info = get_worker_info()
        if info is not None and self._is_entering:
            # a StatefulDataLoader asks before the first batch, of which none will come
            self._require_place(info.id, info.seed - info.id)
        if info is None and any(note >> _LOOP_BITS == self._told for note in self._uncounted.tolist()):
            raise LoaderError(
                "batches come through DataLoader workers, and the training loop has looked into none of them as they "
                "came: call state_dict(batch) with the last one, or iterate over_workers(n)"
            )
        state = self.loader.state_dict()
        if info is not None:
            # of several workers one ends before the others, and goes on with these
            state.pop("ended", None)
        state = packed(state)
        return state if self._worker is None else {**state, "worker": dict(self._worker)}

    def load_state_dict(self, state: Mapping[str, Any], *, grown: Literal["refuse", "finish"] = "refuse") -> None:
        """See `Loader.load_state_dict`; in a worker also where this worker stood among the others."""
        info = get_worker_info()
        if info is not None:
            self._enter(info.id)
        self.loader.load_state_dict(state, grown=grown)
        self._worker = dict(state["worker"]) if info is not None and state.get("worker") else None
        if info is not None:
            self._note_placed(info.id)
        self._is_counted = False
        self._is_placed, self._is_within = info is not None, False

    def seek(self, samples: int) -> None:
        """Stand behind so many samples since the first pass, over all ranks: for trainers that save a count alone.

        Exact where each pass dropped as much as it does with this batch size and world. Raises ValueError where a batch
        was read, or for a count that no steps make.
        """
        samples, stride = whole("samples", samples), self.loader.stride
        if self.loader.step or samples % stride:
            raise ValueError(f"seek({samples}): a loader that read nothing goes behind steps of {stride} samples")
        passes, position = divmod(samples, len(self.loader) * stride)
        place = {"pass": self._first_pass + passes, "position": position, "step": samples // stride}
        self.load_state_dict({**self.state_dict(), **place})

    def statistics(self) -> LoaderStatistics:
        """See `Loader.statistics`: of what came through `over_workers` the batches and the waits for them; what worker
        processes assembled, checked and fetched is counted in each of them alone.
        """
        return self.loader.statistics()

    def wait_verified(self, timeout_s: float = WAIT_S_MAX) -> None:
        """See `Loader.wait_verified`. Worker processes give no unchecked row."""
        self.loader.wait_verified(timeout_s)

    def close(self) -> None:
        """See `Loader.close`."""
        self.loader.close()


class OverWorkers(_Batches):
    """A `TorchLoader`'s batches through worker processes, with a length and a state, as trainers ask for them."""

    def __init__(self, loader: TorchLoader, num_workers: int, options: Mapping[str, Any]) -> None:
        self.dataset = loader
        self._workers = num_workers
        self._options = dict(options)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.dataset._over_workers(self._workers, self._options)

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """See `TorchLoader.set_epoch`."""
        self.dataset.set_epoch(epoch)

    def keep(self) -> None:
        """See `TorchLoader.keep`."""
        self.dataset.keep()

    def begin_next(self) -> None:
        """See `TorchLoader.begin_next`."""
        self.dataset.begin_next()

    def state_dict(self) -> dict[str, Any]:
        """See `Loader.state_dict`: behind the last batch that the loop received."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Loader.load_state_dict`."""
        self.dataset.load_state_dict(state)


def loader_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The loader's state in that of a `StatefulDataLoader`: of all its workers', the one that is furthest, and the
    steps that came since, where it looks at its workers every `snapshot_every_n_steps`.

    It can be loaded at any world size, batch size and number of workers. Raises LoaderError where there is none, and
    where there are those of several loaders.
    """
    found = find_state(state)
    if found is None:
        raise LoaderError("this state holds none of a Headrace loader; pass what StatefulDataLoader.state_dict() gave")
    return found
