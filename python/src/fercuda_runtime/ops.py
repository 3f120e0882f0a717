"""Ops: primitives of array programs, over arrays of any library with DLPack.

    from fercuda_runtime import ops

    y = ops.softmax(x, axis=1)                   # of a torch.Tensor a torch.Tensor
    ops.relu(y, out=y)                           # in place
    plan = ops.plan("softmax", x, axis=1)        # chosen and compiled once
    plan.run(x, out=y)

Each op of the registry is a function here, with its parameters as keywords: docs/ops.md lists them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ._ops import (
    CacheInfo,
    Description,
    OpPlan,
    Parameter,
    Sku,
    SupportsDLPack,
    TensorLayout,
    cache_info,
    call as _call,
    clear_cache,
    default_session,
    describe,
    known as _known,
    names,
    plan,
)
from .errors import OpError as _OpError

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


def _signature(op: Description) -> inspect.Signature:
    kinds = inspect.Parameter
    first_optional = len(op.operands) - op.optional
    parameters = []
    for at, operand in enumerate(op.operands):
        if op.repeated > 0 and at + op.repeated == len(op.operands):
            name = operand if op.repeated == 1 else "groups"
            parameters.append(kinds(name, kinds.VAR_POSITIONAL))
            break
        default = None if at >= first_optional else kinds.empty
        parameters.append(kinds(operand, kinds.POSITIONAL_OR_KEYWORD, default=default))
    for it in op.parameters:
        default = kinds.empty if it.is_required else it.default
        parameters.append(kinds(it.name, kinds.KEYWORD_ONLY, default=default))
    for name, default in (("out", None), ("stream", None), ("session", None), ("sku", None), ("check", False)):
        parameters.append(kinds(name, kinds.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)


def _function(name: str) -> Callable[..., Any]:
    def op(
        *operands: Any,
        out: Any = None,
        stream: Any = None,
        session: Any = None,
        sku: str | None = None,
        check: bool = False,
        **parameters: Any,
    ) -> Any:
        return _call(name, operands, parameters, out, stream, session, sku, check)

    of = describe(name)
    results = "" if len(of.results) == 1 else f" Results: {', '.join(of.results)}."
    op.__name__ = op.__qualname__ = name
    op.__module__ = __name__
    op.__doc__ = f"{of.doc}.{results}"
    op.__signature__ = _signature(of)  # type: ignore[attr-defined]
    return op


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:
        _known(name)
    except _OpError as error:
        raise AttributeError(str(error), name=name) from None
    made = globals()[name] = _function(name)
    return made


def __dir__() -> list[str]:
    return sorted({*__all__, *names()})
