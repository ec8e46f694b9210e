"""Makes the libraries of loops for a wheel: `python -m headrace.stages.text.machine.build FOLDER`.

Each level of processors is compiled by a process of its own, since numba asks for the processor once. All loops of a
level come together in one module, where what several of them call stands once, and `ld` makes a library of it, which
needs nothing but the C library.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from headrace.stages.text.machine import native
from headrace.stages.text.machine.kernels import CalledLoop
from headrace.stages.text.machine.native import ELEMENTS, Array, Number, Signature, Tuple, Type, parse
from headrace.stages.text.machine.sources import digest

#: Modules that have loops which Python calls.
MODULES = (
    "headrace.stages.text.words",
    "headrace.stages.quality.repetition",
    "headrace.stages.quality.gopher",
    "headrace.stages.quality.c4",
    "headrace.stages.quality.fineweb",
    "headrace.stages.dedup.minhash",
    "headrace.stages.dedup.judge",
    "headrace.stages.dedup.key_index",
    "headrace.stages.dedup.clusters",
    "headrace.stages.dedup.spans.spans",
    "headrace.stages.dedup.index.claims",
    "headrace.stages.dedup.index.filters",
    "headrace.stages.dedup.index.lookups",
    "headrace.stages.dedup.index.records",
    "headrace.stages.dedup.index.runs",
    "headrace.stages.dedup.index.slots",
    "headrace.stages.decontamination.index",
    "headrace.stages.decontamination.stage",
)
LINK = ("ld", "-shared", "-z", "noexecstack", "-z", "relro", "-z", "now", "--strip-all", "--build-id=none")
#: Limit on the compilation of one level, in seconds.
BUILD_S_MAX = 1800


def entries() -> Iterator[CalledLoop]:
    """The loops that Python calls, each under the module that it stands in."""
    for name in MODULES:
        module = importlib.import_module(name)
        yield from (each for each in vars(module).values() if isinstance(each, CalledLoop) and each.module == name)


def build(folder: pathlib.Path, levels: Sequence[str] = tuple(native.LEVELS)) -> list[pathlib.Path]:
    """Put the libraries of these levels there; those of other sources go."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / native.name_of(digest(), level) for level in levels]
    for old in set(folder.glob("*.so")) - set(made):
        old.unlink()
    for level, path in zip(levels, made, strict=True):
        if not path.exists():
            # Without names of features it is the level's own.
            env = {**os.environ, "NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": ""}
            command = [sys.executable, "-P", "-m", __spec__.name, "--level", level, str(path)]
            subprocess.run(command, env=env, check=True, timeout=BUILD_S_MAX)  # noqa: S603 - our own module
    return made


def build_level(level: str, path: pathlib.Path, loops: Sequence[CalledLoop]) -> None:
    """Compile these loops for the processor that numba was told of."""
    from llvmlite import binding as untyped_binding  # type: ignore[import-untyped]

    binding: Any = untyped_binding
    binding.initialize_all_asmprinters()
    linked: Any = None
    for loop in loops:
        module = binding.parse_assembly(_code_of(loop))
        if linked is None:
            linked = module
        else:
            linked.link_in(module)
    kept = {native.symbol(loop.module, loop.__name__) for loop in loops}
    for each in (*linked.functions, *linked.global_variables):
        if not each.is_declaration and each.name not in kept:
            each.linkage = "internal"
    linked.verify()
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(cpu=level, features="", opt=3, reloc="pic", codemodel="small")
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    options = binding.create_pipeline_tuning_options(speed_level=0)
    passes.run(linked, binding.create_pass_builder(machine, options))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, library = pathlib.Path(folder, "loops.o"), pathlib.Path(folder, path.name)
        compiled.write_bytes(machine.emit_object(linked))
        subprocess.run([*LINK, "-o", str(library), str(compiled)], check=True, timeout=BUILD_S_MAX)  # noqa: S603
        library.replace(path)


def _code_of(loop: CalledLoop) -> str:
    """The loop and all that it calls, in LLVM's words, with the function that Python calls."""
    from headrace.stages.text.machine import parts

    signature = parse(loop.signature)
    taken = tuple(_numba_type(kind) for kind in signature.takes)
    made = parts.Loop(loop.function, "").compile_alone(taken)
    given = made.signature.return_type
    if given != _returned(signature):
        raise SystemExit(f"{loop.module}.{loop.__name__} returns {given}, its signature says {loop.signature}")
    made.library._ensure_finalized()
    text = str(made.library._final_module)
    return f"{text}\n{_wrapper(native.symbol(loop.module, loop.__name__), made.fndesc.llvm_func_name, signature)}"


def _numba_type(kind: Type) -> Any:
    from numba import types as untyped_types

    types: Any = untyped_types
    match kind:
        case Number():
            return getattr(types, ELEMENTS[kind.name].replace("bool", "boolean"))
        case Array():
            return types.Array(getattr(types, ELEMENTS[kind.name].replace("bool", "boolean")), kind.axes, "C")
        case Tuple():
            return types.Tuple(tuple(_numba_type(item) for item in kind.items))
        case never:
            assert_never(never)


def _returned(signature: Signature) -> Any:
    from numba import types as untyped_types

    types: Any = untyped_types
    if signature.gives is None:
        return types.none
    kinds = tuple(_numba_type(number) for number in signature.gives)
    return types.Tuple(kinds) if signature.gives_tuple else kinds[0]


#: Bytes of an element, and LLVM's name of a number as it is passed.
_BYTES = {"bool": 1, "u8": 1, "u16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8}
_PASSED = {"bool": "i8", "u64": "i64", "i64": "i64", "f64": "double"}


class _Lines:
    """A function in LLVM's words: it reads the slots, calls the loop, and puts what that returns into the results."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.passed: list[str] = []
        self._slots = self._names = 0

    def add(self, what: str) -> str:
        """A line that computes something; its name."""
        self._names += 1
        self.lines.append(f"  %v{self._names} = {what}")
        return f"%v{self._names}"

    def slot(self, kind: str = "i64") -> str:
        """The next eight bytes."""
        place = self.add(f"getelementptr i64, ptr %slots, i64 {self._slots}")
        self._slots += 1
        return self.add(f"load {kind}, ptr {place}, align 1")

    def take(self, kind: Type) -> None:
        """Read what is passed as this type: numba passes all members of what has some, each by itself."""
        match kind:
            case Number("bool"):
                self.passed.append(f"i8 {self.add(f'trunc i64 {self.slot()} to i8')}")
            case Number():
                self.passed.append(f"{_PASSED[kind.name]} {self.slot(_PASSED[kind.name])}")
            case Array():
                self._take_array(kind)
            case Tuple():
                for item in kind.items:
                    self.take(item)
            case never:
                assert_never(never)

    def _take_array(self, kind: Array) -> None:
        data = self.add(f"inttoptr i64 {self.slot()} to ptr")
        shape = [self.slot() for _ in range(kind.axes)]
        strides, step = [], str(_BYTES[kind.name])
        for length in reversed(shape):
            strides.append(step)
            step = self.add(f"mul i64 {step}, {length}")
        count = self.add(f"udiv i64 {step}, {_BYTES[kind.name]}")
        # of nobody's memory, with no object of Python's
        self.passed += ["ptr null", "ptr null", f"i64 {count}", f"i64 {_BYTES[kind.name]}", f"ptr {data}"]
        self.passed += [f"i64 {each}" for each in (*shape, *reversed(strides))]


def _wrapper(symbol: str, loop: str, signature: Signature) -> str:
    body = _Lines()
    for kind in signature.takes:
        body.take(kind)
    gives = signature.gives or ()
    held = "{" + ", ".join(_PASSED[number.name] for number in gives) + "}" if gives else "ptr"
    body.lines = [f"  %returned = alloca {held}", "  %error = alloca ptr", "  store ptr null, ptr %error", *body.lines]
    status = body.add(f'call i32 @"{loop}"({", ".join(["ptr %returned", "ptr %error", *body.passed])})')
    for at, number in enumerate(gives):
        place = body.add(f"getelementptr {held}, ptr %returned, i32 0, i32 {at}")
        value, passed = body.add(f"load {_PASSED[number.name]}, ptr {place}"), _PASSED[number.name]
        if number.name == "bool":
            value, passed = body.add(f"zext i8 {value} to i64"), "i64"
        target = body.add(f"getelementptr i64, ptr %results, i64 {at}")
        body.lines.append(f"  store {passed} {value}, ptr {target}, align 1")
    head = f'define i32 @"{symbol}"(ptr %slots, ptr %results)'
    return "\n".join([head + " {", *body.lines, f"  ret i32 {status}", "}", ""])


def main() -> None:
    """Make the libraries of all levels in a folder."""
    if sys.argv[1:2] == ["--level"]:
        build_level(sys.argv[2], pathlib.Path(sys.argv[3]), list(entries()))
        return
    if not sys.argv[1:]:
        raise SystemExit("name the folder for the libraries")
    for path in build(pathlib.Path(sys.argv[1]), sys.argv[2:] or tuple(native.LEVELS)):
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
