"""What the tasks of one machine inherit: large things that stages load and never change, loaded once before the fork.

A module of the library takes part by a function `preload`, which is given the parameters of a stage of it and keeps
what that stage will look for. It must leave no thread, no descriptor and no lock behind, since these do not live
through a fork.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

#: What stages on an object store load.
REMOTE = "headrace.stages.remote"
#: The modules that have a `preload`. User code is none of them: it runs in tasks only.
MODULES = ("headrace.stages.tokenizer", REMOTE)

#: A module, and the parameters of a stage of it.
Inherited = tuple[str, dict[str, Any]]


def inherited_by(stages: Iterable[Mapping[str, Any]], dataset: str) -> list[Inherited]:
    """What tasks of these stages (as `Stage.to_dict` gives them) would inherit, where they write to this dataset."""
    found: list[Inherited] = []
    uris = [dataset]
    for stage in stages:
        module, parameters = str(stage["target"]).partition(":")[0], dict(stage["parameters"])
        if module in MODULES:
            found.append((module, parameters))
        given = parameters.get("input", ())
        uris += given if isinstance(given, list) else []
    return [*found, (REMOTE, {})] if any(str(uri).lower().startswith("s3://") for uri in uris) else found


def preload(module: str, parameters: Mapping[str, Any]) -> None:
    """Load it in this process. Raises whatever hinders it: the stage itself will say that better."""
    if module not in MODULES:
        raise ValueError(f"{module} preloads nothing; there are {', '.join(MODULES)}")
    importlib.import_module(module).preload(**parameters)
