"""Loops that are made of loops: a function that others call is optimized and made machine code with them alone.

Numba optimizes each function and makes machine code of it, and then does so again in each of its callers, which link
it. That was half of the time that the loops took to compile. Here a function that is compiled for a caller stays what
a caller links, and is kept as such; it becomes machine code of its own when Python calls it.
"""

from __future__ import annotations

import contextlib
import operator
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numba as untyped_numba
from numba import extending as untyped_extending
from numba.core.compiler_lock import global_compiler_lock

from headrace.store.files import taken_alone

#: How long a process waits for another one that adds to the cache.
SAVE_SECONDS_MAX = 10.0
# The GIL stays held: the loops of a process share their scratch. They allocate nothing, and without `_nrt`
# no references to arrays are counted, which takes half of their time.
# Nobody calls them from C: what would let it is a fifth of the time that compiling takes.
_OPTIONS = {"nopython": True, "boundscheck": None, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
# What numba says of its types is not what it takes.
numba: Any = untyped_numba
core: Any = numba.core
_cpu: Any = core.registry.cpu_target
overload: Any = untyped_extending.overload
types: Any = numba.types
#: With two indices, a pointer is to rows of four.
_ROW = 4


class Loop(core.registry.CPUDispatcher):  # type: ignore[misc]
    """A function as machine code, for the types that it is called with; kept in `folder` if that has a name."""

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        super().__init__(function, targetoptions=dict(_OPTIONS))
        self._compiler: Any = _Compiler(function, _cpu, self.targetoptions, {}, core.compiler.Compiler)
        if folder:
            config = numba.config
            before, config.CACHE_DIR = config.CACHE_DIR, folder
            try:
                self._cache: Any = _Kept(function)
            finally:
                config.CACHE_DIR = before

    def _compilation_chain_init_hook(self) -> None:
        """What other packages add to numba is no part of our loops, and awkward's takes 0.4 s to import."""

    def compile(self, sig: Any) -> Any:
        """The function for these types; one that was a part until now is compiled again if it is to be called."""
        with global_compiler_lock:
            args = tuple(core.sigutils.normalize_signature(sig)[0])
            held = self.overloads.get(args)
            if held is not None and isinstance(held.library, _Part) and not _are_parts():
                del self.overloads[args]
            return super().compile(sig)

    def compile_part(self, args: tuple[Any, ...]) -> None:
        """Compile the function for arguments like these, as a part of others."""
        with global_compiler_lock, _parts():
            self.compile(tuple(numba.typeof(arg) for arg in args))

    def compile_alone(self, args: tuple[Any, ...]) -> Any:
        """What numba makes of the function for these types, for a library: Python does not call it."""
        with global_compiler_lock:
            return self._compiler.compile_alone(args)

    def add_overload(self, cres: Any) -> None:
        """Take what was compiled; a part is not for Python to call."""
        if isinstance(cres.library, _Part):
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)


class _Unbound:
    """Takes the environments of parts, which nobody reads."""

    def set_env(self, env_name: str, env: Any) -> None:
        pass


class _Part(core.codegen.JITCodeLibrary):  # type: ignore[misc]
    """A function as its callers link it."""

    codegen = _Unbound()

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002 (there is none)
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> Any:
        return self.serialize_using_bitcode()


def _are_parts() -> bool:
    return _cpu.target_context.codegen()._library_class is _Part


@contextlib.contextmanager
def _parts() -> Iterator[None]:
    """While a function is compiled, those that it calls are parts."""
    backend = _cpu.target_context.codegen()
    before, backend._library_class = backend._library_class, _Part
    try:
        yield
    finally:
        backend._library_class = before


class _Compiler(core.dispatcher._FunctionCompiler):  # type: ignore[misc]
    def compile_alone(self, args: tuple[Any, ...]) -> Any:
        """The function as code of its own, which only other code calls."""
        return self._compile_core(args, None, is_called=False)

    def _compile_core(self, args: Any, return_type: Any, *, is_called: bool = True) -> Any:
        flags, library = core.compiler.Flags(), None
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        flags.no_cpython_wrapper = _are_parts() or not is_called
        if not _are_parts():
            library = _cpu.target_context.codegen().create_library(self.py_func.__qualname__)
            library.enable_object_caching()
        with _parts():
            return core.compiler.compile_extra(
                _cpu.typing_context, _cpu.target_context, self.py_func, args, return_type, flags, self.locals, library,
                self.pipeline_class,
            )  # fmt: skip


class _Kept(core.caching.FunctionCache):  # type: ignore[misc]
    """Machine code that is there is taken without what only a compiler needs.

    One process at a time adds to a function's index: of two, the later would name the code of the other.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # Numba's own first makes ready all that it can compile, half a second; a compilation does so itself.
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        with taken_alone(pathlib.Path(self.cache_path).parent, "saving", SAVE_SECONDS_MAX):
            super().save_overload(sig, data)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _are_parts())


def _is_row(data: Any, index: Any) -> bool:
    return isinstance(data, types.CPointer) and isinstance(index, types.BaseTuple) and len(index) == 2


@overload(operator.getitem)  # type: ignore[untyped-decorator]
def _get(data: Any, index: Any) -> Any:
    def get(data: Any, index: Any) -> Any:
        return data[_ROW * index[0] + index[1]]

    return get if _is_row(data, index) else None


@overload(operator.setitem)  # type: ignore[untyped-decorator]
def _set(data: Any, index: Any, value: Any) -> Any:  # noqa: ARG001 (numba tells by it what is set)
    def put(data: Any, index: Any, value: Any) -> Any:
        data[_ROW * index[0] + index[1]] = value

    return put if _is_row(data, index) else None
