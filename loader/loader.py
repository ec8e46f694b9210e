"""The loader: datasets in one global order, as batches for one rank, with exact and elastic resume.

A pass is one sequence of positions 0..N-1 (`headrace.loader.order.order`, `headrace.loader.order.mixture`). With the
state at position P, world size W and batch size B, the next step reads positions P..P+W*B-1, and rank r takes the
contiguous slice P+r*B..P+(r+1)*B-1. So all ranks hold the same position after the same step, any of their states serves
all, and a state loaded at another W or B goes on with the same samples in the same order.

Every rank makes the same number of steps. Where fewer than W*B samples are left, `last` decides for all ranks alike:
"drop" ends the pass before them (a smaller global batch could read them), "pad" fills the batch with rows of padding.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from headrace.loader.arguments import check_sizes, check_step, chosen, listed_sources, whole
from headrace.loader.batch import Batch, BatchTask, Buffers, Iteration, Made, Share, chosen_fields, prefetch_of
from headrace.loader.dataset import WAIT_S_MAX, Source, Sources, TokenDataset
from headrace.loader.order import (
    BLOCK_ROWS_DEFAULT,
    WINDOW_BLOCKS_DEFAULT,
    Cut,
    Hosted,
    LastBatch,
    LoaderClosed,
    LoaderError,
    Mixture,
    Offered,
    Order,
    OrderMode,
    Recut,
    Revised,
    Shuffle,
    Skipped,
    WeightSchedule,
    changes_of,
    pass_max,
    recut,
    replaced,
)
from headrace.loader.place import LoaderPlace
from headrace.loader.state import (
    STATE_FORMAT,
    Grown,
    Resumption,
    binding_of,
    journal_to_json,
    mixture_of,
    require_room,
    resume,
)
from headrace.loader.statistics import LoaderStatistics, ReceivedCounts, shares_of, statistics_of
from headrace.loader.world import RankPlace, World, given_world, host_ranks

T = TypeVar("T")


class Loader(LoaderPlace):
    """Batches of one rank, as dicts of numpy arrays (`headrace.loader.batch.fields.Batch`).

    `dataset` is a TokenDataset, its URI or path, or a list of `Source` for a mixture. `batch_size` is in sequences, per
    rank. `order` is "windowed", "sequential" or "full"; `window_blocks` and `block_rows` shape the windowed one.
    `last` is "drop" or "pad". `prefetch` is how many batches a thread makes ahead, by default eight, and fewer large
    ones (`headrace.loader.batch.producer.prefetch_of`); with 0 they are made when asked for. `pass_samples` is the
    length of a mixture's pass, by default the samples of all its datasets. `fields` names those of
    `headrace.loader.batch.fields.FIELDS` that are made beside `tokens`, by default all. `local_ranks` are the ranks on
    this host, which share a cache and fetch from a remote store what they read; by default as torchrun says, or else
    all.

    `rank` and `world_size` are passed both or neither. Where they are not, the process group of torch.distributed says
    them, or torchrun, when the first batch is made (`headrace.loader.world`); a world of one that was passed beside a
    larger one is refused then, unless `alone=True` says that this process reads every row, whatever others do.

    Iterating goes on from the state, and after the end of a pass the next iteration begins the next pass; with
    `restarts`, as for validation, each iteration begins this pass again, also where the last one was cut short. Only
    one iteration lives at a time: a new one, `close`, `load_state_dict`, `skip`, `reweight` end it. Errors of reading
    come out of the iterator. Raises LoaderError where a pass has no step, ValueError for senseless arguments.
    """

    def __init__(
        self,
        dataset: TokenDataset | str | os.PathLike[str] | Sequence[Source],
        *,
        batch_size: int,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        pass_: int = 0,
        order: OrderMode | str = OrderMode.WINDOWED,
        window_blocks: int = WINDOW_BLOCKS_DEFAULT,
        block_rows: int = BLOCK_ROWS_DEFAULT,
        last: LastBatch | str = LastBatch.DROP,
        prefetch: int | None = None,
        pass_samples: int | None = None,
        fields: Collection[str] | None = None,
        local_ranks: Collection[int] | None = None,
        alone: bool = False,
        restarts: bool = False,
    ) -> None:
        batch_size = whole("batch_size", batch_size, 1)
        #: whether each iteration begins the pass again
        self.restarts = restarts
        self._place = RankPlace(given_world(rank, world_size, alone=alone), alone=alone)
        mode = chosen(OrderMode, "order", order)
        window_blocks, block_rows = whole("window_blocks", window_blocks, 1), whole("block_rows", block_rows, 1)
        self._shuffle = Shuffle(whole("seed", seed), mode, window_blocks, block_rows)
        self._cut_now = Cut(batch_size, self._place.look().size, chosen(LastBatch, "last", last))
        self._local_asked = None if local_ranks is None else tuple(local_ranks)
        self._local_now = host_ranks(self._local_asked, self._place.look()) if self._place.is_told else None
        self.sources = Sources(listed_sources(dataset))
        self._prefetch = None if prefetch is None else whole("prefetch", prefetch)
        #: which of `FIELDS` are made beside `tokens`
        self.fields = chosen_fields(fields).names
        self._buffers = Buffers(chosen_fields(self.fields))
        self._start(whole("pass_", pass_), None if pass_samples is None else whole("pass_samples", pass_samples, 1))

    def _start(self, pass_: int, pass_samples: int | None) -> None:
        datasets = self.sources.datasets
        check_sizes(self.sources, self._cut_now, pass_samples)
        self._pass_samples = pass_samples
        samples = pass_samples or sum(dataset.layout.samples for dataset in datasets)
        check_step(self.dataset, self._cut_now, samples)
        if pass_ > pass_max(samples):
            raise ValueError(f"pass_ is at most {pass_max(samples)} for passes of {samples} samples, got {pass_}")
        self._shuffle.order(datasets[0].layout, 0, pass_)  # raises what is wrong with the arguments
        begin = pass_ * samples
        super().__init__(samples, pass_, (Revised(begin, self.sources.versions), Recut(begin, 0, self._cut_now)))
        self._mixture = self._mix()
        #: all of a dataset that grew, while a pass over the shards that it had is finished
        self._grown: Sources | None = None
        #: the last states over those, each time that it grew
        self._before: tuple[Mapping[str, Any], ...] = ()
        self._share = Share(0, 1)
        self._is_worker = False
        self._running: Iteration[Any] | None = None
        #: what the caller received, also by way of other processes
        self.counts = ReceivedCounts()

    @property
    def rank(self) -> int:
        """Which rank this is, as far as is known by now."""
        return self._place.look().rank

    @property
    def local_ranks(self) -> tuple[int, ...] | None:
        """The ranks of this host, where they are known; of a remote store only what these read is fetched."""
        return self._local_now if self._cut else None

    @property
    def _cut(self) -> Cut:
        self._enter_world(self._place.look())
        return self._cut_now

    def _enter_world(self, world: World, *, is_settled: bool = False) -> None:
        """Cut the pass as these ranks do. Nobody has made a step yet where their number changes."""
        if is_settled or world.size != self._cut_now.world_size:
            self._local_now = host_ranks(self._local_asked, world)
        if world.size != self._cut_now.world_size:
            cut = replace(self._cut_now, world_size=world.size)
            check_step(self.dataset, cut, self._samples)
            self.journal = recut(self.journal, Recut(self._absolute, self._step, cut))
            self._cut_now = cut

    @property
    def dataset(self) -> TokenDataset:
        """The dataset, or the first of a mixture."""
        return self.sources.datasets[0]

    @property
    def order(self) -> Order:
        """The order of the pass being read: which row stands at a position, and at which position a row is read."""
        if len(self.sources.datasets) > 1:
            raise LoaderError("a mixture has no single order; headrace.loader.trace answers for it")
        return self._mixture.order(0, self._pass)

    @property
    def stride(self) -> int:
        """Samples a step, over all ranks."""
        return self._cut.stride

    @property
    def steps_left(self) -> int:
        """Batches that are left of this pass, the same on each rank."""
        return self._cut.steps(self._offered().count)

    def __len__(self) -> int:
        """Batches of the pass that the next loop reads, those among them that were read already; alike on each rank."""
        if self.is_behind:
            if self._grown is not None:
                return self._cut.steps(self._grown.datasets[0].layout.samples)
            begin = (self._pass + 1) * self._samples
            return self._cut.steps(Offered(begin, begin + self._samples, self._skips()).count)
        return self._step - self._first_step + self.steps_left

    @property
    def is_behind(self) -> bool:
        """Whether the next loop is over the next pass."""
        return not self.restarts and (self._ended or not (self._is_moved or self.steps_left))

    def __repr__(self) -> str:
        return f"<Loader of {list(self.sources.datasets)}, step {self.step}>"

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate(_same)

    def iterate(self, transform: Callable[[Batch], T]) -> Iterator[T]:
        """Like iterating, with `transform` applied to each batch by the thread that makes it.

        The state keeps to what the caller received, whatever was transformed ahead.
        """
        self.end_iteration()
        return self._run(transform, self.iterations)

    def _run(self, transform: Callable[[Batch], T], iteration: int) -> Iterator[T]:
        if iteration != self.iterations:
            raise LoaderClosed("this iteration was ended before it began; iterate the loader anew")
        self._enter_world(self._place.settle(), is_settled=True)
        if self.restarts:
            self._step, self._position, self._ended = self._first_step, 0, False
        elif self.is_behind:
            self._advance()
        running, paused = self._begin(transform), True
        check, received, now_s = self.sources.check, self._received, time.perf_counter
        try:
            if iteration != self.iterations:
                raise LoaderClosed("this iteration was ended while its threads began; iterate the loader anew")
            while True:
                before = now_s()
                try:
                    chunk = running.take()
                except StopIteration:
                    self.sources.wait_verified()
                    self._end_pass()
                    return
                if paused:
                    self.sources.go_on_checking()
                    paused = False
                for one in chunk:
                    check()
                    received(one, before, now_s())
                    yield one.item
                    if iteration != self.iterations:
                        raise LoaderClosed("this iteration was ended by close, a change of state or a newer iteration")
                    before = now_s()
                # the last batch must not keep its memory from being used again
                del chunk, one
        finally:
            running.close()

    def _end_pass(self) -> None:
        """Stand behind the last step of the pass, also where others made it (`share_steps`)."""
        offered = self._offered()
        steps = self._cut.steps(offered.count)
        if steps:
            behind = offered.after(np.array([steps * self._cut.stride], dtype=np.int64))
            self._position, self._step = int(behind[0]) - self._pass * self._samples, self._step + steps
        self._ended = True

    def _begin(self, transform: Callable[[Batch], T]) -> Iteration[T]:
        # the first batch comes sooner if nothing else reads meanwhile
        self.sources.pause_checks()
        depth, stop = self._depth(), threading.Event()
        task = BatchTask(
            self.sources.until(stop.is_set), self._mixture, self._cut, self.rank, self._offered(), self._step,
            self._pass, self._share, max(1, depth), self._buffers,
        )  # fmt: skip
        self._running = running = Iteration(task, self.sources, self._hosted(), depth, transform, stop)
        return running

    def _depth(self) -> int:
        if self._prefetch is not None:
            return self._prefetch
        batch_bytes = self._cut.batch_size * self.sources.seq_len * self._buffers.fields.token_bytes
        return prefetch_of(batch_bytes, by_worker=self._is_worker)

    def _received(self, one: Made[Any], asked_s: float, came_s: float) -> None:
        self._position = one.position - self._pass * self._samples
        self._step = one.step
        self._is_moved = False
        if self._share.of > 1:
            self._share = Share(self._share.of - 1, self._share.of)
        self.counts.count(one.samples, asked_s, came_s, one.assemble_s)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that the caller received: plain JSON, equal on each rank.

        `position` is in samples of the pass over all ranks, whatever the world size and the batch size. After the end
        of a loop over the pass it says so (`ended`), and the loop after `load_state_dict` is over the next one.
        """
        if self.restarts:
            return self.state_at(self._pass, 0, self._first_step)
        return self.state_at(self._pass, self._position, self._step) | ({"ended": True} if self._ended else {})

    def state_at(self, pass_: int, position: int, step: int) -> dict[str, Any]:
        """The state at the place that a batch's `state` names: for batches that came through other processes."""
        if self._grown is not None and pass_ > self._pass:
            # those have gone over to all of a dataset that grew
            later = self.replica(forked=False)
            later._end_pass()
            later._advance()
            return later.state_at(pass_, position, step)
        self._enter_world(self._place.look())
        return {
            "format": STATE_FORMAT,
            "position": position,
            "pass": pass_,
            "step": step,
            "journal": journal_to_json(self.journal),
            **binding_of(self.sources, [one.layout for one in self.sources.datasets], self._shuffle, self._samples),
            **({"before": list(self._before)} if self._before else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, grown: Grown = "refuse") -> None:
        """Go on where `state` was taken; world size, rank and batch size may differ from then.

        A dataset that has more shards than the state knows is refused by DatasetGrew, or with `grown="finish"` read as
        it was to the end of the state's pass, and whole from the next pass on; of a mixture each source that grew, by
        passes of its own. Raises StateMismatch with a diff where dataset, tokenizer, seq_len, seed or order differ,
        else LoaderError; a loader that refused a state stands where it stood.
        """
        self._load(state, grown)
        self._tell_watchers()

    def _load(self, state: Mapping[str, Any], grown: Grown) -> None:
        ours = Resumption(self.sources, self._grown, self._shuffle, self._cut, self._pass_samples)
        found = resume(state, ours, grown)
        if len(found.sources.datasets) > 1:
            check_step(self.dataset, self._cut, found.mixture.samples)
        self.end_iteration()
        self.sources, self._grown, self._before = found.sources, found.later, found.before
        self._samples, self._mixture, self.journal = found.mixture.samples, found.mixture, found.events
        self._pass, self._position, self._step = found.pass_, found.position, found.step
        self._share = Share(0, 1)
        # samples that were dropped at the end are read, where smaller batches hold them
        self._ended = state.get("ended") is True and not self.steps_left
        self._is_moved = True

    def skip(self, first: int, count: int) -> None:
        """Leave out `count` positions of this pass from `first` on (such as what made the loss jump), and journal it.

        Call it on each rank alike. To leave out what was read, load an earlier state first. Raises ValueError for
        positions behind the state or past the pass.
        """
        first, count = whole("first", first), whole("count", count)
        if first < self._position:
            raise ValueError(f"skip({first}, {count}): all before {self._position} was read; load an earlier state")
        if first + count > self._samples:
            raise ValueError(f"skip({first}, {count}): the pass ends at position {self._samples}, and so must a skip")
        require_room(self.journal, 1)
        self.end_iteration()
        self.journal += (Skipped(self._pass * self._samples + first, count),)
        self._is_moved = True
        self._tell_watchers()

    def reweight(self, weights: Sequence[float] | WeightSchedule) -> None:
        """Give the mixture other weights, or those of a schedule, from the state's position on, and journal it.

        Call it on each rank. What a schedule had for later holds no more.
        """
        made = changes_of(weights, self._absolute, len(self.sources.datasets))
        require_room(self.journal, len(made))
        self.end_iteration()
        self.journal = replaced(self.journal, self._absolute, made)
        self._mixture = self._mix()
        self._tell_watchers()

    def next_pass(self) -> None:
        """Go to the beginning of the next pass, as the next iteration does after the last batch of one.

        What is left of this pass is left out, which is journalled. Call it on each rank. A loader that restarts stays.
        """
        self.end_iteration()
        if not self.restarts:
            is_whole = not self.steps_left
            self._advance()
            if not is_whole:
                self._tell_watchers()

    def reach_pass(self, pass_: int) -> None:
        """Go to the beginning of a later pass, unless the next loop is over it, or over one behind it."""
        while not self.restarts and self._pass + self.is_behind < pass_:
            self.next_pass()

    def _advance(self) -> None:
        last, left = self.state_at(self._pass, self._position, self._step), self.steps_left
        self._pass, self._position, self._ended = self._pass + 1, 0, False
        if left:
            # steps are left out, and those that follow are numbered on
            self.journal += (Recut(self._absolute, self._step, self._cut),)
        if self._grown is not None:
            self._before = (*last.pop("before", ()), last)
            self.sources, self._grown = self._grown, None
            self._samples = self.dataset.layout.samples
            begin = self._pass * self._samples
            self.journal = (Revised(begin, self.sources.versions), Recut(begin, self._step, self._cut))
            self._mixture = self._mix()

    def share_steps(self, first: int, of: int) -> None:
        """Make only every `of`-th step, from the `first`-th on: for one of `of` worker processes of one rank."""
        self.end_iteration()
        self._share, self._is_worker = Share(first, of), True

    def statistics(self) -> LoaderStatistics:
        """Counts and times since the loader was made; shares are since the beginning of the journal."""
        shares = shares_of(self.sources, self._mixture, self.journal, self._absolute)
        return statistics_of(self.counts, self.sources, shares, self._absolute, self.rank)

    def wait_verified(self, timeout_s: float = WAIT_S_MAX) -> None:
        """Return when every shard that was read from has been checked against its checksum.

        Call it before a checkpoint is written. Raises ChecksumMismatch, and LoaderError after `timeout_s`.
        """
        self.sources.wait_verified(timeout_s)

    def close(self) -> None:
        """End the running iteration and its threads; the loader can be iterated again."""
        self.end_iteration()
        self._buffers.clear()
        for dataset in self.sources.datasets:
            dataset.close()

    def replica(self, *, forked: bool = True) -> "Loader":
        """The same loader at the same place with threads of its own, for a process that was forked."""
        return _rebuilt(self._plain(forked=forked))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._plain(forked=False),)

    def _plain(self, *, forked: bool) -> dict[str, Any]:
        shuffle = self._shuffle
        arguments = {
            "dataset": (self._grown or self.sources).plain(forked=forked),
            **self._place.arguments(),
            "batch_size": self._cut.batch_size,
            "seed": shuffle.seed,
            "order": shuffle.mode,
            "window_blocks": shuffle.window_blocks,
            "block_rows": shuffle.block_rows,
            "last": self._cut.last,
            "prefetch": self._prefetch,
            "fields": self.fields,
            "local_ranks": self._local_asked,
            "restarts": self.restarts,
            "pass_samples": self._samples if len(self.sources.datasets) > 1 else None,
        }
        return {"arguments": arguments, "state": self.state_dict()}

    def _mix(self) -> Mixture:
        return mixture_of(self.sources, self._shuffle, self.sources.weights, self._samples, self.journal)

    def _hosted(self) -> Hosted:
        ranks = range(self._cut.world_size) if self.local_ranks is None else self.local_ranks
        return Hosted(self._samples, self._cut, ranks, self._offered(), self._skips())

    def follow(self, state: Mapping[str, Any], *, is_known: bool) -> None:
        """Stand where another process does, behind a batch of its that the caller received.

        `is_known` says that all but the place is as of the last state followed, and nothing else changed.
        """
        if is_known and state["pass"] == self._pass:
            self._position, self._step = state["position"], state["step"]
        else:
            self._load(state, "finish")
        self._is_moved = self._ended = False

    def end_iteration(self) -> None:
        """End the running iteration; the next one goes on from the state."""
        self.iterations += 1
        if self._running is not None:
            self._running.close()
        self._running = None


def _rebuilt(plain: Mapping[str, Any]) -> Loader:
    loader = Loader(**plain["arguments"])
    # the choice was made, if there was one
    loader.load_state_dict(plain["state"], grown="finish")
    return loader


def _same(batch: Batch) -> Batch:
    return batch
