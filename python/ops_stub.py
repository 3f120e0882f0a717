"""Writes the stub of the module `fercuda_runtime.ops`: a function for each op of the registry.

    python3 python/ops_stub.py > python/src/fercuda_runtime/ops.pyi

It asks the installed package, so that editors and type checkers know what that has.
"""

from __future__ import annotations

import sys
import textwrap

from fercuda_runtime.ops import Description, Parameter, describe, names

HEAD = '''"""Ops: primitives of array programs, over arrays of any library with DLPack. Made by
`python/ops_stub.py`; docs/ops.md lists the ops with their types.

Each op is a function. Results are in the library of the first operand, or Buffers where that has no
`from_dlpack`; the library's current stream waits for them, and the session for the library's
operands. `out`: existing outputs, one or a tuple of all; an operand may be one, if the op computes
each element from the one at its place. `stream`: the stream in which operands are ready and
behind which the op is ordered, instead of the library's current one. `session`: where the op runs
and its memory comes from; otherwise the session of the first Buffer, or `default_session`. `sku`:
the kernel, instead of the plan's choice. `check`: wait, and raise for an index outside of its axis.

Raises `DtypeError`, `LayoutError` and `ArgumentsError` for operands that do not fit, `OpError` for
a parameter that does not, `OpIndexError`, `LimitError`, `OutOfMemoryError`, `StaleHandleError`,
`SessionEndedError`, `DeviceFaultError` of earlier work.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack

from ._fercuda import Buffer, Session
from ._ops import (
    Array as _Array,
    CacheInfo as CacheInfo,
    Description as Description,
    OpPlan as OpPlan,
    Outputs as _Outputs,
    Parameter as Parameter,
    Sku as Sku,
    Stream as _Stream,
    SupportsDLPack as SupportsDLPack,
    TensorLayout as TensorLayout,
    cache_info as cache_info,
    clear_cache as clear_cache,
    default_session as default_session,
    describe as describe,
    names as names,
    plan as plan,
)

_Integers = int | Sequence[int]
_Dtype = str | type | Any

class _Options(TypedDict, total=False):
    out: _Outputs | None
    stream: _Stream | None
    session: Session | None
    sku: str | None
    check: bool
'''
TYPES = {
    "number": "float",
    "integers": "_Integers",
    "axis": "int",
    "axes": "_Integers",
    "order": "Sequence[int]",
    "bool": "bool",
    "dtype": "_Dtype",
    "shape": "_Integers",
}


def parameter(it: Parameter) -> str:
    kind = TYPES.get(it.kind) or f"Literal[{', '.join(map(repr, it.choices))}]"
    if it.is_required:
        return f"{it.name}: {kind}"
    if it.default is None:
        return f"{it.name}: {kind} | None = None"
    return f"{it.name}: {kind} = {it.default!r}"


def function(op: Description) -> str:
    parts = []
    for at, operand in enumerate(op.operands):
        kind = "_Array" if at == 0 else "SupportsDLPack"
        if op.repeated > 0 and at + op.repeated == len(op.operands):
            parts.append(f"*{operand if op.repeated == 1 else 'groups'}: {kind}")
            break
        if at >= len(op.operands) - op.optional:
            parts.append(f"{operand}: {kind} | None = None")
        else:
            parts.append(f"{operand}: {kind}")
    if op.parameters and op.repeated == 0:
        parts.append("*")
    parts += [parameter(it) for it in op.parameters]
    parts.append("**options: Unpack[_Options]")
    result = "_Array" if op.operands else "Buffer"
    if op.repeated > 1:
        result = f"tuple[{result}, ...]"
    elif len(op.results) > 1:
        result = f"tuple[{', '.join([result] * len(op.results))}]"
    line = f"def {op.name}({', '.join(parts)}) -> {result}:"
    if len(line) > 100:
        inside = "".join(f"    {part},\n" for part in parts[:-1])
        line = f"def {op.name}(\n{inside}    {parts[-1]}\n) -> {result}:"
    said = f"{op.doc}."
    if len(op.results) > 1:
        said += f" Results: {', '.join(op.results)}."
    said = textwrap.fill(f'"""{said}"""', 96, break_long_words=False)
    return f"{line}\n{textwrap.indent(said, '    ')}\n"


def stub() -> str:
    return "\n".join([HEAD, *(function(describe(name)) for name in names())])


if __name__ == "__main__":
    sys.stdout.write(stub())
