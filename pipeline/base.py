"""The base of a run: a version of another dataset of the same input, whose verdicts it takes over.

What is taken over are verdicts of stages before the first one that is another, by the recipe that closed the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from headrace.pipeline.errors import PipelineError

#: Stages a pipeline may hold; a graph beyond it is a mistake of a generator, not a pipeline.
STAGES_MAX = 256
#: Recipes of one base.
RECIPES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Base:
    """A published version, and of each of its recipes the stages that are unchanged, by source, in their order.

    `changed` is the first stage that is another than in the recipe in force, "" where none is. With `again`, what was
    quarantined is judged again.
    """

    dataset: str
    version: int
    entry: int
    changed: str
    recipes: Mapping[str, Mapping[str, tuple[str, ...]]]
    again: bool = False

    @property
    def passed(self) -> frozenset[str]:
        """The stages that are unchanged in all of its recipes, whatever the source."""
        paths = [set(stages) for of_sources in self.recipes.values() for stages in of_sources.values()]
        return frozenset(name for name in chain(*paths) if all(name in path for path in paths))

    def to_dict(self) -> dict[str, Any]:
        """The base as JSON."""
        recipes = {
            name: {source: list(stages) for source, stages in paths.items()} for name, paths in self.recipes.items()
        }
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__match_args__}
        return plain | {"recipes": recipes}

    @staticmethod
    def from_dict(data: object) -> Base:
        """The inverse of `to_dict`. Raises PipelineError for anything else."""
        try:
            given = _mapping(data)
            found = {name: _paths(paths) for name, paths in _mapping(given["recipes"]).items()}
            texts = all(isinstance(given[name], str) for name in ("dataset", "changed"))
            base = Base(given["dataset"], given["version"], given["entry"], given["changed"], found, given["again"])
        except (KeyError, TypeError) as error:
            raise PipelineError(f"not a base of a run: {str(error)[:200]}") from error
        numbers = all(type(number) is int and number >= 0 for number in (base.version, base.entry))
        if not (numbers and texts and type(base.again) is bool and len(base.recipes) <= RECIPES_MAX):
            raise PipelineError("not a base of a run: a value of another type, or too many recipes")
        return base


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"a value of type {type(value).__name__}, where an object should be")
    held = cast("Mapping[object, Any]", value)
    if not all(isinstance(name, str) for name in held):
        raise TypeError("a name that is no text")
    return {str(name): item for name, item in held.items()}


def _paths(value: object) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for source, stages in _mapping(value).items():
        if not isinstance(stages, (list, tuple)) or len(cast("list[Any]", stages)) > STAGES_MAX:
            raise TypeError(f"the stages behind {source!r}")
        names = cast("list[Any]", stages)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"a stage behind {source!r} that is no text")
        found[source] = tuple(names)
    return found
