"""Calls of ops: the library that gets the results, and the order of its streams; descriptions and
plans. The kernels, their choice and the memory are the compiled part's."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, SupportsInt, TypeVar

from . import _fercuda
from ._fercuda import Buffer, Session
from .errors import ConfigError, OpError

__all__ = [
    "CacheInfo",
    "Description",
    "OpPlan",
    "Parameter",
    "Sku",
    "SupportsDLPack",
    "TensorLayout",
    "cache_info",
    "clear_cache",
    "default_session",
    "describe",
    "names",
    "plan",
]


class SupportsDLPack(Protocol):
    """An array with DLPack: a Buffer, or an array of CuPy, PyTorch, JAX and other libraries."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


Array = TypeVar("Array", bound=SupportsDLPack)
Outputs = SupportsDLPack | Sequence[SupportsDLPack]
Stream = int | Any


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an op, a keyword of its function.

    `kind`: "number", "integers", "choice", "axis", "axes", "order", "bool", "dtype" or "shape".
    `choices`: the values of a choice. A parameter that is not required has `default`; None is the
    last axis, all axes, or the dimensions reversed, and for a dtype what the op documents.
    """

    name: str
    kind: str
    is_required: bool
    default: Any
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """What the registry has of an op.

    `operands`: names; the last `optional` may be left out, and the last `repeated` may be given many
    times, one after another. `dtypes`: for each operand the types that it may have. `results`:
    names; of operands in several groups each group has them.
    """

    name: str
    family: str
    doc: str
    signature: str
    operands: tuple[str, ...]
    optional: int
    repeated: int
    dtypes: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Sku:
    """The kernel of a plan. `rejected`: for each other candidate why it was not chosen."""

    kernel: str
    reason: str
    rejected: Mapping[str, str]
    launches: int


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Type, shape and strides of an operand or a result; strides count elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Counters of the cache of plans: calls that found their plan, those that made it, and the plans
    that are kept. Of each device the 1024 last used are."""

    hits: int
    misses: int
    plans: int


class _OrderedError(Exception):
    """Ends a library's `from_dlpack`, which has given its stream."""


class _StreamProbe:
    """Makes the current stream of a library wait for a session, by the library's `from_dlpack`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._session.device

    def __dlpack__(self, *, stream: int | None = None, **_options: Any) -> NoReturn:
        if stream != -1:
            self._session.lead_stream(1 if stream is None else stream)
        raise _OrderedError


_importers: dict[type, Callable[[Any], Any] | None] = {}


def _importer(array: Any) -> Callable[[Any], Any] | None:
    """The `from_dlpack` of an array's library, if it has one."""
    kind = type(array)
    try:
        return _importers[kind]
    except KeyError:
        pass
    found = None
    if hasattr(array, "__array_namespace__"):
        found = getattr(array.__array_namespace__(), "from_dlpack", None)
    for base in kind.__mro__:
        if found is None:
            package = sys.modules.get(base.__module__.partition(".")[0])
            found = getattr(package, "from_dlpack", None)
    _importers[kind] = found
    return found


def _order_behind(session: Session, array: Any) -> None:
    """Makes the current stream of an array's library wait for a session."""
    take = _importer(array)
    if take is None:
        # Without its stream, the one that streams of all libraries wait for.
        session.lead_stream(1)
        return
    try:
        take(_StreamProbe(session))
    except _OrderedError:
        pass


def _stream_number(stream: Stream | None) -> int | None:
    """The handle of a stream: a number, or a stream of PyTorch, CuPy or cuda.core."""
    if stream is None:
        return None
    handle: Any = stream
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        handle = (found() if callable(found) else found)[1]
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        handle = stream.ptr
    elif not isinstance(stream, SupportsInt):
        raise ConfigError(
            f"stream is {stream!r}\ntry: a stream of PyTorch, CuPy or cuda.core, or a stream's handle"
        )
    number = int(handle)
    if number == 0 and handle is not stream:
        # The default stream, by its own class.
        return 1
    if number <= 0:
        raise ConfigError(
            f"stream {number} is no stream\ntry: 1 for the legacy default stream, 2 for the per-thread one, or a handle"
        )
    return number


def _delivered(
    session: Session,
    results: tuple[Any, ...],
    operands: tuple[Any, ...],
    keywords: Mapping[str, Any],
    out: Outputs | None,
    is_ordered: bool,
) -> Any:
    """The results in the library of the first operand, with all libraries' streams behind them."""
    library = None
    if out is None and operands and type(operands[0]) is not Buffer:
        library = _importer(operands[0])
        if library is not None:
            results = tuple(library(it) for it in results)
    if not is_ordered:
        arrays = [*operands, *keywords.values(), *(results if out is not None else ())]
        seen: set[Any] = {library, None} if library is not None else {None}
        for array in arrays:
            if type(array) is Buffer or not hasattr(array, "__dlpack__"):
                continue
            take = _importer(array)
            if take is None or take not in seen:
                seen.add(take)
                _order_behind(session, array)
    return results[0] if len(results) == 1 else results


def call(
    name: str,
    operands: tuple[Any, ...],
    keywords: dict[str, Any],
    out: Outputs | None = None,
    stream: Stream | None = None,
    session: Session | None = None,
    sku: str | None = None,
    check: bool = False,
) -> Any:
    """Runs an op."""
    number = None if stream is None else _stream_number(stream)
    if not operands and keywords:
        operands, keywords = _positional(name, keywords)
    owner, results = _fercuda.run_op(name, operands, keywords, out, number, session, sku, check)
    if owner is None:
        # In the library's own stream, with its own memory.
        return results[0] if len(results) == 1 else results
    return _delivered(owner, results, operands, keywords, out, number is not None)


def _positional(name: str, keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Operands that were all given by keyword, in their order: the first decides the library."""
    (_, (operands, *_), *_) = _fercuda.op_row(name)
    given = []
    rest = dict(keywords)
    for operand in operands:
        if operand not in rest:
            break
        given.append(rest.pop(operand))
    return tuple(given), rest


class OpPlan:
    """An op for operands of fixed layouts, with its kernel chosen and compiled. Made by `plan`."""

    __slots__ = ("_plan",)

    def __init__(self, plan: _fercuda.OpPlan) -> None:
        self._plan = plan

    def run(self, *operands: Any, out: Outputs | None = None, stream: Stream | None = None) -> Any:
        """Queues the op over operands of the plan's layouts, as the op's function does, into `out` of
        its layouts or new results. Compiles nothing. Waits for nothing, unless the plan was made
        with `check`.

        Raises `LayoutError` for other layouts, `ArgumentsError` for another number of operands, and
        the exceptions of running an op.
        """
        number = None if stream is None else _stream_number(stream)
        owner, results = self._plan.run(operands, out, number)
        return _delivered(owner, results, operands, {}, out, number is not None)

    @property
    def op(self) -> str:
        """Name of the op."""
        return self._plan.op

    @property
    def sku(self) -> Sku:
        """The chosen kernel, and why not the others."""
        kernel, reason, rejected, launches = self._plan.sku
        return Sku(kernel, reason, dict(rejected), launches)

    @property
    def workspace_bytes(self) -> int:
        """Memory of the session that a run holds until it is done, besides new results."""
        return self._plan.workspace_bytes

    @property
    def operands(self) -> tuple[TensorLayout, ...]:
        """Layouts of the operands."""
        return tuple(TensorLayout(dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in self._plan.operands)

    @property
    def outputs(self) -> tuple[TensorLayout, ...]:
        """Layouts of the results."""
        return tuple(TensorLayout(dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in self._plan.outputs)

    @property
    def session(self) -> Session:
        """The session that it runs in."""
        return self._plan.session

    def __repr__(self) -> str:
        return repr(self._plan)


def plan(
    name: str,
    /,
    *operands: Any,
    out: Outputs | None = None,
    session: Session | None = None,
    sku: str | None = None,
    check: bool = False,
    **parameters: Any,
) -> OpPlan:
    """A plan of an op for operands of these layouts; their elements are not read. Plans are cached,
    so that equal calls share one, also with the op's function. Arguments as for the function.

    Raises the exceptions of the function, but those of running.
    """
    return OpPlan(_fercuda.plan_op(known(name), operands, parameters, out, session, sku, check))


def names() -> tuple[str, ...]:
    """The names of all ops, by families."""
    return _NAMES


_NAMES = tuple(_fercuda.op_names())


def known(name: str) -> str:
    """The name, if there is an op of it.

    Raises `OpError` with the nearest names.
    """
    if name in _NAMES:
        return name
    near = difflib.get_close_matches(name, _NAMES, 4, 0.6) or [it for it in _NAMES if name in it][:4]
    hint = f"{', '.join(near)}; ops.names() has all" if near else "one of ops.names()"
    error = OpError(f"there is no op {name!r}\ntry: {hint}")
    error.op = name
    raise error


def describe(name: str, /) -> Description:
    """What an op is, and which operands and parameters it takes.

    Raises `OpError` with the nearest names, if there is no such op.
    """
    (name, family, doc, signature), operands, results, parameters = _fercuda.op_row(known(name))
    all_names, optional, repeated, dtypes = operands
    return Description(
        name,
        family,
        doc,
        signature,
        tuple(all_names),
        optional,
        repeated,
        tuple(map(tuple, dtypes)),
        tuple(results),
        tuple(
            Parameter(
                it,
                kind.removeprefix("required "),
                kind.startswith("required") or kind == "shape",
                default,
                tuple(choices),
            )
            for it, kind, default, choices in parameters
        ),
    )


def default_session(device: int = 0) -> Session:
    """The session in which ops run that are given neither a session nor a Buffer: one for each
    device, named "ops", opened by its first use. Once it is closed, or a reboot has ended it, the
    next use opens another one."""
    return _fercuda.default_op_session(device)


def cache_info() -> CacheInfo:
    """Counters of the cache of plans, of all devices."""
    return CacheInfo(*_fercuda.op_plan_counters())


def clear_cache() -> None:
    """Drops the cached plans, and code that no `OpPlan` uses; compiled code stays on disk."""
    _fercuda.clear_op_plans()
