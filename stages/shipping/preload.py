"""What the tasks of one machine inherit: large things that stages load and never change, loaded once before the fork.

A module of the library that a pipeline names is imported. One that loads more takes part by a function `preload`, which
is given the parameters of a stage of it and keeps what that stage will look for. It must leave no thread, no descriptor
and no lock behind, since these do not live through a fork.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterable, Mapping
from typing import Any

#: Notes where the minified form of a tokenizer's file is.
MINIFIED = "headrace.stages.tokenizer.minified"
#: The client of object stores, whose import takes a third of a second of processor time.
REMOTE = "headrace.store.s3.store"
#: Where the library's modules are. User code is none of them: it runs in tasks only.
LIBRARY = "headrace.stages."
#: Those that have a `preload`.
MODULES = ("headrace.stages.tokenizer.tokenize", "headrace.stages.dedup.stage", MINIFIED)
#: Those of which machine code is loaded where it is compiled already, under the module's own name: compiling it is a
#: task's work.
COMPILED = tuple(f"headrace.stages.quality.{name}" for name in ("repetition", "gopher", "fineweb", "c4"))

#: Stages that judge and hold much, a model or machine code: where a base says for most records that they pass, they
#: are made when one comes that it does not say it of. They promise to merge and to judge, and nothing more.
DEFERRED = frozenset(
    f"headrace.stages.quality.{name}"
    for name in (
        "repetition:GopherRepetition",
        "gopher:GopherQuality",
        "fineweb:FinewebQuality",
        "models.language:Language",
    )
)

#: A module, and the parameters of a stage of it, if it has a `preload`.
Inherited = tuple[str, dict[str, Any]]


def inherited_by(stages: Iterable[Mapping[str, Any]], dataset: str, passed: Container[str] = ()) -> list[Inherited]:
    """What tasks of these stages (as `Stage.to_dict` gives them) would inherit, where they write to this dataset.

    Those that all records `passed` in the run's base may have nothing to judge.
    """
    found: list[Inherited] = []
    uris = [dataset]
    for stage in stages:
        module, parameters = str(stage["target"]).partition(":")[0], dict(stage["parameters"])
        if str(stage.get("name")) in passed and can_wait(stage["target"], parameters):
            continue
        if module.startswith(LIBRARY) and module not in (name for name, _ in found):
            found.append((module, parameters if module in MODULES else {}))
        given = parameters.get("input", ())
        uris += given if isinstance(given, list) else []
    return [*found, (REMOTE, {})] if any(str(uri).lower().startswith("s3://") for uri in uris) else found


def can_wait(target: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a stage that records have passed in a run's base can be made when it is needed."""
    return target in DEFERRED and not parameters.get("tag")


def preload(module: str, parameters: Mapping[str, Any]) -> None:
    """Load it in this process. Raises whatever hinders it: the stage itself will say that better."""
    if not module.startswith(LIBRARY) and module != REMOTE:
        raise ValueError(f"{module} is not of the library, {LIBRARY}*")
    found = importlib.import_module(module)
    if module in MODULES:
        found.preload(**parameters)
    elif module in COMPILED:
        from headrace.stages.text.machine import is_prepared

        if is_prepared(module.rpartition(".")[2]):
            found.compile_loops()
