"""Weights of a mixture by feedback: a policy proposes them from losses, and the journal has them from the first
position that nobody has read.

The trainer brings losses that are the same on each rank: the sums and counts of `batch["sources"]` reduced over all.
Every policy that follows from its arguments alone then gives each rank the same entry at the same position, without a
word between them. No policy is known to be better than a good fixed mixture in general (Aioli, arXiv 2411.05735):
what is here is the mechanism, and one simple policy to begin with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import Protocol

from headrace.loader.loader import Loader
from headrace.loader.order import shares_of_weights, weights_at
from headrace.loader.state import parse_journal


class WeightPolicy(Protocol):
    """What proposes weights. It must follow from its arguments alone, so that each rank proposes the same."""

    def propose(self, position: int, weights: tuple[float, ...], losses: tuple[float, ...]) -> Sequence[float] | None:
        """Other weights [sources] from absolute position `position` on, or None to leave them.

        `weights` [sources] hold now; `losses` [sources] are those that the trainer brought, None of them NaN.
        """
        ...


@dataclass(frozen=True, slots=True)
class MoreOfTheHarder:
    """Moves weight towards sources of higher loss: each is multiplied by e**(rate * how far above the mean).

    No source falls below `share_min` of the mixture, and one without weight stays without.
    """

    rate: float = 0.1
    share_min: float = 0.01

    def propose(self, position: int, weights: tuple[float, ...], losses: tuple[float, ...]) -> Sequence[float] | None:
        """See WeightPolicy."""
        del position
        whole = sum(weights)
        mean = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / whole
        moved = [
            weight / whole * exp(max(-20.0, min(20.0, self.rate * (loss - mean))))
            for weight, loss in zip(weights, losses, strict=True)
        ]
        return [max(one / sum(moved), self.share_min) if one else 0.0 for one in moved]


def feed_back(loader: Loader, policy: WeightPolicy, losses: Sequence[float]) -> bool:
    """Ask a policy, and give the loader's mixture what it proposes; whether that is other than before.

    `losses` [sources] are equal on all ranks, and each rank calls this behind the same step. It ends the loop over the
    loader as `reweight` does: iterate anew. Weights are whole thousandths. Raises ValueError for losses that are not
    finite or not one a source, and for a proposal of weights that are none.
    """
    count = len(loader.sources.datasets)
    if len(losses) != count or not all(isfinite(loss) for loss in losses):
        raise ValueError(f"feed_back takes a finite loss a dataset, of which there are {count}, got {list(losses)}")
    state = loader.state_dict()
    position = state["pass"] * state["samples"] + state["position"]
    now = weights_at(parse_journal(state["journal"]), position, loader.sources.weights)
    proposed = policy.propose(position, now, tuple(float(loss) for loss in losses))
    if proposed is None:
        return False
    if len(proposed) != count:
        raise ValueError(f"{type(policy).__name__} proposed {len(proposed)} weights for {count} datasets")
    shares = shares_of_weights(proposed)
    if shares == shares_of_weights(now):
        return False
    loader.reweight(shares)
    return True
