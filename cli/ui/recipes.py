"""The recipes of a dataset: which versions of the pipeline made it, and how they differ.

Nothing here imports rich: a run with `--json` has no use for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.pipeline import recipe_difference
from headrace.store.datasets import Recipe, closed_ranges, recipes_of
from headrace.store.ledger import LedgerState, main_sink

_TOLD = ("version", "in_force", "shards", "first_entry", "last_entry")
_COUNTED = ("kept", "filtered", "duplicate", "quarantined", "tokens")


@dataclass(frozen=True, slots=True)
class Recipes:
    """The recipes of one dataset, in the order in which they were applied."""

    made: tuple[Recipe, ...]

    @staticmethod
    def of(state: LedgerState) -> Recipes:
        """Those that closed something, and the one in force."""
        return Recipes(recipes_of(state, main_sink(state.counts)))

    def __len__(self) -> int:
        return len(self.made)

    def place(self, version: str) -> str:
        """Which of the recipes a version is: "2 of 3"."""
        versions = [recipe.version for recipe in self.made]
        return f"{versions.index(version) + 1} of {len(versions)}" if version in versions else "unknown"

    def difference(self, index: int) -> list[str]:
        """What changed from the recipe before, a line each; of the first one nothing."""
        return recipe_difference(self.made[index - 1].pipeline, self.made[index].pipeline) if index else []

    def to_json(self) -> list[dict[str, Any]]:
        """An object for each; `difference` is that to the one before."""
        return [
            {
                **{
                    name: getattr(recipe, name)
                    for name in ("version", "in_force", "shards", "first_entry", "last_entry")
                },
                **{name: getattr(recipe.counts, name) for name in _COUNTED},
                "records_closed": recipe.counts.records,
                "difference": self.difference(index),
            }
            for index, recipe in enumerate(self.made)
        ]


def ranges_json(state: LedgerState) -> list[dict[str, Any]]:
    """Each closed range with the version of the pipeline that closed it, by the word of the main sink."""
    return [
        {
            "uri": item.fragment.uri,
            "start": item.fragment.start,
            "fragment": item.fragment.id.hex(),
            "first": item.first,
            "records": item.end - item.first,
            "version": item.version,
        }
        for item in closed_ranges(state, main_sink(state.counts))
    ]
