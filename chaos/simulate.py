"""`headrace simulate`: run the cores in virtual time, seed after seed, until an invariant breaks or the seeds are done.

A seed that fails prints the line that replays it, and the end of its story.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import resource_tracker

from headrace.chaos.sim import MUTANTS, SimulationOutcome, planted, simulate
from headrace.chaos.sim.queues import MUTANTS as QUEUE_MUTANTS, simulate_queues
from headrace.daemon import be_killed_with

SEEDS = 1000
SEEDS_MAX = 10_000_000
#: Seeds that a process is given at a time.
CHUNK = 20
_FOR_LIFE = ExitStack()
#: Those of one pipeline, and those of a cluster in queues.
ALL_MUTANTS = {**MUTANTS, **QUEUE_MUTANTS}


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate; 0 if every invariant held, 1 if one did not, 2 on wrong usage."""
    parser = argparse.ArgumentParser(
        prog="headrace simulate",
        description="Run controller, ledger, worker and credit in virtual time, with faults drawn from a seed.",
    )
    parser.add_argument("--seeds", type=_positive, default=SEEDS, help=f"how many seeds (default {SEEDS})")
    parser.add_argument("--seed", type=int, help="run this one seed, and tell its story")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--queues", action="store_true", help="several pipelines on one cluster, in queues")
    parser.add_argument(
        "--dense", action="store_true", help="60 to 100 moments with faults within a minute, in place of 5 to 50"
    )
    parser.add_argument("--mutant", choices=sorted(ALL_MUTANTS), help="plant this defect; the simulator is to find it")
    parser.add_argument("--jobs", type=_positive, help="processes that simulate (default: one a core)")
    args = parser.parse_args(argv)
    seeds = range(args.start, args.start + args.seeds) if args.seed is None else range(args.seed, args.seed + 1)
    jobs = min(args.jobs or len(os.sched_getaffinity(0)), -(-len(seeds) // CHUNK))
    simulated = partial(simulate_queues if args.queues or args.mutant in QUEUE_MUTANTS else simulate, dense=args.dense)
    options = "".join(f" --{name}" for name in ("queues", "dense") if vars(args)[name])
    options += f" --mutant {args.mutant}" if args.mutant else ""
    with _outcomes(simulated, seeds, args.mutant, jobs) as outcomes:
        return _run(seeds, outcomes, options)


@contextmanager
def _outcomes(
    simulated: Callable[[int], SimulationOutcome], seeds: range, mutant: str | None, jobs: int
) -> Iterator[Iterator[SimulationOutcome]]:
    """The outcome of each seed, in the order of the seeds, whoever simulates it."""
    with ExitStack() as stack:
        if jobs <= 1:
            _plant(mutant, stack)
            yield map(simulated, seeds)
        else:
            context = multiprocessing.get_context("spawn")
            # It would let signals through again when the first of them starts it.
            resource_tracker.ensure_running()
            # Ctrl-C goes to all of them: whoever started this ends them, from the first moment of each on
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                pool = stack.enter_context(context.Pool(jobs, _plant, (mutant, None)))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield pool.imap(simulated, seeds, CHUNK)


def _plant(mutant: str | None, stack: ExitStack | None) -> None:
    """Plant a mutant; where no stack takes it out again, for as long as the process lives."""
    if stack is None and (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        be_killed_with(parent.pid)
    if mutant:
        (stack or _FOR_LIFE).enter_context(planted(mutant, ALL_MUTANTS))


def _run(seeds: range, outcomes: Iterator[SimulationOutcome], options: str) -> int:
    started = time.perf_counter()
    events = faults = 0
    for done, outcome in enumerate(outcomes, start=1):
        events += outcome.events
        faults += len(outcome.faults)
        if outcome.violation:
            _tell(outcome, options)
            return 1
        if len(seeds) == 1:
            print(
                f"seed {outcome.seed}: complete after {outcome.seconds:.1f} virtual s, {outcome.entries} entries in",
                end=" ",
            )
            print(f"{outcome.terms} terms; faults: {', '.join(outcome.faults)}")
        elif done % 500 == 0:
            print(f"{done} seeds, {_rate(done, started)}", file=sys.stderr)
    ran = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    print(f"{ran}, {events} events, {faults} faults: every invariant held; {_rate(len(seeds), started)}")
    return 0


def _tell(outcome: SimulationOutcome, options: str) -> None:
    print("\n".join(outcome.story))
    print(f"\n{outcome.violation}")
    print(f"after {outcome.events} events and these faults: {', '.join(outcome.faults) or 'none'}")
    print(f"replay: headrace simulate --seed {outcome.seed}{options}")


def _rate(seeds: int, started: float) -> str:
    return f"{seeds / max(1e-9, time.perf_counter() - started) * 60:.0f} seeds/min"


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= SEEDS_MAX:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and {SEEDS_MAX}")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
