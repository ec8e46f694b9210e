"""The declared graph: stages as plain data, joined into a DAG.

A declaration never holds code. A stage names its implementation by import path and carries JSON parameters;
the source text of the user's own functions travels as text in `Pipeline.modules`. So a pipeline can be hashed,
compared, logged in the ledger and sent to a worker that has never seen the file it came from.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, cast

from headrace.pipeline.base import STAGES_MAX as STAGES_MAX, Base
from headrace.pipeline.code import fingerprint
from headrace.pipeline.errors import PipelineError

#: Bytes of source text of the user's own modules that may be shipped.
MODULES_BYTES_MAX = 4 << 20
#: Characters of a value in a line of a difference.
SHOWN_MAX = 80
#: Characters of a stage's parameters in what Python shows of it.
PARAMETERS_SHOWN = 160
#: How the target of a stage ends that makes keys for one that remembers.
KEY_MAKER = "stages.dedup.stage:KeyMaker"
#: And that of a sink whose shards are trained on.
TRAINED_ON = "stages.sinks.tokens:TokenSink"


class StageKind(Enum):
    """What a stage may do with a batch. STATEFUL: a transform that remembers, such as dedup; of it runs one replica."""

    SOURCE = "source"
    TRANSFORM = "transform"
    STATEFUL = "stateful"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Stage:
    """One node of the graph.

    `target` is the import path of its implementation, `module:name`. `parameters` is JSON. `identity` holds the
    facts about its inputs that change its output but are no parameters, such as the hash of a tokenizer's file;
    `volatile` names the parameters that do not change what a record becomes (a path whose content is hashed in
    `identity`, a batch size), so that they are no part of the pipeline's version. `replicas` None means as many
    as there are cores. `on` is where it may run: a worker's name or one of its labels; empty means with the stage
    before it. `near` is where it had rather run, such as `zone=a` for a source whose input is there. `cores` and
    `memory_bytes` are what one replica takes; 0 means that nothing is reserved. See `placed`.
    """

    name: str
    kind: StageKind
    target: str
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    volatile: tuple[str, ...] = ()
    replicas: int | None = None
    after: tuple[str, ...] = ()
    on: str = ""
    near: str = ""
    cores: float = 0.0
    memory_bytes: int = 0

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        shown = given if len(given) <= PARAMETERS_SHOWN else f"{given[: PARAMETERS_SHOWN - 3]}..."
        return f"<Stage {self.name!r}, a {self.kind.value}{': ' if shown else ''}{shown}>"

    def fed_by(self, *stages: str) -> Stage:
        """This stage behind those of these names; `Pipeline.chain` does it where each has one before it."""
        return replace(self, after=stages)

    def placed(
        self,
        *,
        on: str = "",
        near: str = "",
        cores: float = 0.0,
        memory_bytes: int = 0,
        replicas: int | None = None,
    ) -> Stage:
        """This stage with its place and what each of its replicas takes; no part of the pipeline's version."""
        replicas = self.replicas if replicas is None else replicas
        return replace(self, on=on or self.on, near=near, cores=cores, memory_bytes=memory_bytes, replicas=replicas)

    def to_dict(self) -> dict[str, Any]:
        """The stage as JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__match_args__}
        plain |= {name: dict(plain[name]) for name in ("parameters", "identity")}
        return plain | {"kind": self.kind.value, "volatile": list(self.volatile), "after": list(self.after)}

    @staticmethod
    def from_dict(data: object) -> Stage:
        """The inverse of `to_dict`; raises PipelineError on anything else."""
        if not isinstance(data, Mapping):
            raise PipelineError(f"not a stage: {type(data).__name__}, where an object should be")
        given = cast("Mapping[str, Any]", data)
        try:
            replicas = given.get("replicas")
            return Stage(
                name=_of(str, given["name"]),
                kind=StageKind(given["kind"]),
                target=_of(str, given["target"]),
                parameters=dict(_of(Mapping, given["parameters"])),
                identity=dict(_of(Mapping, given.get("identity", {}))),
                volatile=_texts(given.get("volatile", ())),
                replicas=None if replicas is None else _of(int, replicas),
                after=_texts(given.get("after", ())),
                on=_of(str, given.get("on", "")),
                near=_of(str, given.get("near", "")),
                cores=float(_of((int, float), given.get("cores", 0.0))),
                memory_bytes=_of(int, given.get("memory_bytes", 0)),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PipelineError(f"not a stage: {str(error)[:200]} in {str(given.get('name'))[:SHOWN_MAX]!r}") from error


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A graph of stages that writes one dataset.

    `dataset` is the URI that the sinks write to and whose ledger accounts for every record. `modules` maps module
    names to the source text of the user's own stages. `base` is no part of its version: it spares work.
    """

    name: str
    dataset: str
    stages: tuple[Stage, ...]
    modules: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    base: Base | None = None

    def __repr__(self) -> str:
        # In a chain each stage follows the one before it; only of another is said what it follows.
        before = [(), *((stage.name,) for stage in self.stages)]
        stages = ", ".join(
            stage.name
            + ("" if stage.after == last else f" (after {' and '.join(stage.after)})" if stage.after else " (a source)")
            for stage, last in zip(self.stages, before, strict=False)
        )
        return f"<Pipeline {self.name!r} to {self.dataset}: {stages or 'no stages'}>"

    @staticmethod
    def chain(name: str, dataset: str | os.PathLike[str], *parts: Stage | Sequence[Stage]) -> Pipeline:
        """A pipeline whose stages follow one another in the order given; what is several stages, as `dedup()`, too.

        PipelineError for what is no stage.
        """
        stages: list[Stage] = []
        for part in parts:
            several = part if isinstance(part, Sequence) and not isinstance(part, str) else (part,)
            for stage in several:
                if not isinstance(stage, Stage):  # pyright: ignore[reportUnnecessaryIsInstance]
                    shown = repr(stage)[:SHOWN_MAX]
                    raise PipelineError(f"pipeline {name!r}: {shown} is no stage; give stages, as read(...) makes one")
                stages.append(stage)
        linked = [
            replace(stage, after=(stages[index - 1].name,) if index else ()) for index, stage in enumerate(stages)
        ]
        return Pipeline(name=name, dataset=os.fspath(dataset), stages=tuple(linked))

    def stage(self, name: str) -> Stage:
        """The stage of that name; KeyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def downstream(self, name: str) -> tuple[str, ...]:
        """The names of the stages that read from `name`, in declared order."""
        return tuple(stage.name for stage in self.stages if name in stage.after)

    def flows_to(self, name: str) -> tuple[str, ...]:
        """The stages that records flow to from `name`. A stage that remembers is asked, and they flow past it."""
        if self.stage(name).kind is StageKind.STATEFUL:
            return ()
        found: list[str] = []
        for stage in self.downstream(name):
            found += self.downstream(stage) if self.stage(stage).kind is StageKind.STATEFUL else (stage,)
        return tuple(dict.fromkeys(found))

    def flows_from(self, name: str) -> tuple[str, ...]:
        """The stages that records flow from to `name`; of a stage that remembers, those that ask it."""
        found: list[str] = []
        for stage in map(self.stage, self.stage(name).after):
            found += stage.after if stage.kind is StageKind.STATEFUL else (stage.name,)
        return tuple(dict.fromkeys(found))

    def asks(self, name: str) -> str:
        """The stage that `name` asks what is a duplicate, before records flow on; "" for none."""
        return next((stage.name for stage in self.stateful if name in stage.after), "")

    @property
    def stateful(self) -> tuple[Stage, ...]:
        """The stages that remember, in the order in which records come to them; see `validate`."""
        return tuple(stage for stage in chain_order(self.stages) if stage.kind is StageKind.STATEFUL)

    def remembering_before(self, name: str) -> int:
        """How many stages that remember lead to `name`: the number of the keys that it makes, or decides by."""
        return sum(name in {other.name for other in self.behind(stage.name)} for stage in self.stateful)

    def key_makers(self, sink: str) -> dict[int, Stage]:
        """The stages whose keys lie beside the shards of a sink, by the number of the stage that decides by them."""
        makers = [stage for stage in chain_order(self.stages) if stage.target.endswith(KEY_MAKER)]
        return {
            self.remembering_before(stage.name): stage
            for stage in makers
            if sink in {other.name for other in self.behind(stage.name)}
        }

    def behind(self, name: str) -> tuple[Stage, ...]:
        """Every stage that `name` leads to, in declared order."""
        reached = {name}
        for stage in chain_order(self.stages):
            if reached.intersection(stage.after):
                reached.add(stage.name)
        return tuple(stage for stage in self.stages if stage.name in reached and stage.name != name)

    @property
    def dependent_sinks(self) -> tuple[str, ...]:
        """The names of the sinks behind stages that remember, in declared order: each is behind all of them."""
        behind = self.behind(self.stateful[0].name) if self.stateful else ()
        return tuple(stage.name for stage in behind if stage.kind is StageKind.SINK)

    def of_kind(self, kind: StageKind) -> tuple[Stage, ...]:
        """The stages of one kind, in declared order."""
        return tuple(stage for stage in self.stages if stage.kind is kind)

    def unit(self, name: str) -> tuple[str, ...]:
        """The stages that come and go with one, as records pass them: who makes the keys of a stage, and that stage."""
        self._check_has(name)
        decides = name if self.stage(name).kind is StageKind.STATEFUL else self.asks(name)
        keys = f"{decides}-keys"
        return (keys, decides) if name in (keys, decides) and self.stage(decides).after == (keys,) else (name,)

    def with_inserted(self, *stages: Stage, after: str = "", before: str = "") -> Pipeline:
        """This pipeline with stages behind another, before one, or between both. PipelineError for no such place."""
        for name in filter(None, (after, before)):
            self._check_has(name)
        if taken := [stage.name for stage in stages if stage.name in {item.name for item in self.stages}]:
            raise PipelineError(f"pipeline {self.name!r} has a stage {taken[0]!r}: give the new one another name")
        if after and before and after not in self.stage(before).after:
            raise PipelineError(f"stage {before!r} does not read from {after!r}")
        feeding = (after,) if after else self.stage(before).after
        fed = (before,) if before else self.downstream(after)
        last = stages[-1].name
        linked = [
            replace(item, after=tuple(dict.fromkeys(last if name in feeding else name for name in item.after)))
            if item.name in fed
            else item
            for item in self.stages
        ]
        place = 1 + max(index for index, item in enumerate(linked) if item.name in feeding) if feeding else 0
        return replace(self, stages=(*linked[:place], *_in_a_row(stages, feeding), *linked[place:]))

    def with_replaced(self, name: str, *stages: Stage) -> Pipeline:
        """This pipeline with stages in the place of another and its unit. PipelineError if it has none of that name."""
        first, *others = self.unit(name)
        kept = self
        for other in others:
            kept = kept._without(other)
        if taken := [stage.name for stage in stages if stage.name in {item.name for item in kept.stages} - {first}]:
            raise PipelineError(f"pipeline {self.name!r} has a stage {taken[0]!r}: give the new one another name")
        linked: list[Stage] = []
        for item in kept.stages:
            after = tuple(stages[-1].name if other == first else other for other in item.after)
            linked += _in_a_row(stages, item.after) if item.name == first else [replace(item, after=after)]
        return replace(self, stages=tuple(linked), modules=_used(self.modules, linked))

    def with_removed(self, name: str) -> Pipeline:
        """This pipeline without a stage and its unit: those that read from it read from what it read."""
        left = self
        for part in self.unit(name):
            left = left._without(part)
        return replace(left, modules=_used(self.modules, left.stages))

    def _without(self, name: str) -> Pipeline:
        before = self.stage(name).after
        if not before or not self.downstream(name):
            raise PipelineError(f"stage {name!r} has no stage on both sides, and cannot be removed")
        linked: list[Stage] = []
        for item in self.stages:
            feeding = [found for other in item.after for found in (before if other == name else (other,))]
            linked.append(replace(item, after=tuple(dict.fromkeys(feeding))))
        return replace(self, stages=tuple(item for item in linked if item.name != name))

    def _check_has(self, name: str) -> None:
        if name not in (known := [stage.name for stage in self.stages]):
            raise PipelineError(f"pipeline {self.name!r} has no stage {name!r}; it has {', '.join(known)}")

    def to_dict(self) -> dict[str, Any]:
        """The pipeline as JSON."""
        return {
            "name": self.name,
            "dataset": self.dataset,
            "stages": [stage.to_dict() for stage in self.stages],
            "modules": dict(self.modules),
            "environment": dict(self.environment),
            **({} if self.base is None else {"base": self.base.to_dict()}),
        }

    @staticmethod
    def from_dict(data: object) -> Pipeline:
        """The inverse of `to_dict`; raises PipelineError on anything else."""
        if not isinstance(data, Mapping):
            raise PipelineError(f"not a pipeline: {type(data).__name__}, where an object should be")
        given = cast("Mapping[str, Any]", data)
        try:
            return Pipeline(
                name=_of(str, given["name"]),
                dataset=_of(str, given["dataset"]),
                stages=tuple(Stage.from_dict(stage) for stage in _of((list, tuple), given["stages"])),
                modules=_named_texts(given.get("modules", {})),
                environment=_named_texts(given.get("environment", {})),
                base=None if given.get("base") is None else Base.from_dict(given["base"]),
            )
        except (KeyError, TypeError) as error:
            raise PipelineError(f"not a pipeline: {str(error)[:200]}") from error

    def identity(self) -> dict[str, Any]:
        """What decides the verdicts and bytes that this pipeline makes, as flat `path -> value`.

        The dataset's name, the number of replicas, places, what a replica takes and volatile parameters are no part
        of it. Of the user's modules it is the syntax tree that decides (`headrace.pipeline.code`).
        """
        facts: dict[str, Any] = {}
        for stage in self.stages:
            facts[f"{stage.name}.target"] = stage.target
            facts[f"{stage.name}.after"] = ",".join(stage.after)
            for key, value in stage.parameters.items():
                if key not in stage.volatile:
                    facts[f"{stage.name}.{key}"] = value
            for key, value in stage.identity.items():
                facts[f"{stage.name}.{key}"] = value
        for module, text in self.modules.items():
            facts[f"source of {module}"] = fingerprint(text)
        return facts

    def version(self) -> str:
        """The hash of graph, stage sources, environment lock and tokenizer: 16 hex digits."""
        canonical = json.dumps([self.identity(), dict(self.environment)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _in_a_row(stages: Sequence[Stage], after: tuple[str, ...]) -> list[Stage]:
    """These stages, of which the first reads from `after`, and each other one from the one before it."""
    feeding = [after, *((stage.name,) for stage in stages)]
    return [replace(stage, after=before) for stage, before in zip(stages, feeding, strict=False)]


def _used(modules: Mapping[str, str], stages: Sequence[Stage]) -> dict[str, str]:
    """The user's modules that stages name, their packages, and those that one of these may import: its text says so."""
    named = json.dumps([[stage.target, dict(stage.parameters)] for stage in stages], ensure_ascii=False)
    used = {name for name in modules if f"{name}:" in named}
    pending = [*used]
    while pending:
        one = pending.pop()
        left = modules.keys() - used
        more = {name for name in left if name.rpartition(".")[2] in modules[one] or one.startswith(f"{name}.")}
        used |= more
        pending += more
    return {name: text for name, text in modules.items() if name in used}


def _of(kind: Any, value: Any) -> Any:
    """A value of one kind; TypeError for any other. A truth value is no number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"a value of type {type(value).__name__}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_of(str, item) for item in _of((list, tuple), value))


def _named_texts(value: Any) -> dict[str, str]:
    return {_of(str, name): _of(str, text) for name, text in _of(Mapping, value).items()}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What changed from one identity to another, a line each, in the order of the names."""
    lines: list[str] = []
    for key in sorted({*before, *after}):
        old, new = before.get(key, "(absent)"), after.get(key, "(absent)")
        if old != new:
            lines.append(f"{key}: {_short(old, new)} -> {_short(new, old)}")
    return lines


def recipe_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What changed from one pipeline to another, both as JSON: in their identities, and in their environments."""
    try:
        old, new = Pipeline.from_dict(before), Pipeline.from_dict(after)
    except PipelineError as error:
        return [f"it cannot be told what changed: {error}"]
    lines = difference(old.identity(), new.identity())
    return lines + [f"environment: {line}" for line in difference(old.environment, new.environment)]


def _short(value: Any, other: Any) -> str:
    """A value as a line has room for it; of a long one what stands around the first place where it is another."""
    text, beside = (item if isinstance(item, str) else json.dumps(item, sort_keys=True) for item in (value, other))
    if len(text) <= SHOWN_MAX:
        return text
    alike = next((place for place, pair in enumerate(zip(text, beside, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(0, alike - SHOWN_MAX // 2) if alike >= SHOWN_MAX - 3 else 0
    return ("..." if begin else "") + text[begin : begin + SHOWN_MAX - 6] + "..."


def chain_order(stages: Sequence[Stage]) -> list[Stage]:
    """The stages so that each stands behind those it reads from; raises PipelineError that names a cycle."""
    by_name = {stage.name: stage for stage in stages}
    done: dict[str, bool] = {}
    order: list[Stage] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if done.get(name):
            return
        if name in path:
            loop = " -> ".join((*path[path.index(name) :], name))
            raise PipelineError(f"the graph has a cycle: {loop}; a stage cannot read from what it feeds")
        for upstream in by_name[name].after:
            visit(upstream, (*path, name))
        done[name] = True
        order.append(by_name[name])

    for stage in stages:
        visit(stage.name, ())
    return order
