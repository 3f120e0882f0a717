"""Fingerprints of Transformers' functions: which forms of their source a kernel is known to replace.

A fingerprint is a hash of the syntax tree without docstrings and annotations, so that a form is
recognised in any version, and a changed signature or line is not. `KNOWN` was made from
Transformers 5.2.0 to 5.24.0; `python3 -m fercuda_runtime.inference.kernels.fingerprint NAME...`
prints those of functions "module:qualified.name".
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
import textwrap
from typing import Any

KNOWN: dict[str, frozenset[str]] = {
    # weight * (x * rsqrt(mean(x ** 2) + eps)), rounded before the product.
    "norm": frozenset({"9635bcd843f309a0"}),
    # The same by 1 + weight, rounded once; and its method `_norm`.
    "norm of 1 + weight": frozenset({"2dad5f5760750e09"}),
    "_norm": frozenset({"6dc7d2ba16b4048a"}),
    # The first of these is that of 5.13 and before.
    "gated norm": frozenset({"0befe0d7cbec41df", "96920b139d7fbbc2"}),
    "mlp": frozenset({"7d2027d4464e3e71"}),
    "packed mlp": frozenset({"e8d404cbecb96285"}),
    # Without a gate: nothing to fuse.
    "plain mlp": frozenset({"13885f42f2bbb7aa"}),
    # Of a whole head (the first is that of 5.13 and before), and of a part, in two forms.
    "rotary": frozenset({"f4aba3f7faffcffa", "f0e978aab1df6bb0", "d979b6dc501d84b5", "9af4c6b9d14681cf"}),
    "rotate_half": frozenset({"7b6c9b425ca04287"}),
    # Of 5.2, of 5.13 to 5.20, and of 5.24 with the cache's new name.
    "layer": frozenset({"9d0bf910095bf025", "1a8125909341e389", "625e5c2cd738f124"}),
    "hybrid layer with past_key_values": frozenset({"4b4e0ffcf60cd1c4"}),
    "hybrid layer with cache": frozenset({"7d66937ae94f7601"}),
    # Of 5.17 to 5.20, where the cache is `cache_params`, and of 5.24.
    "delta with cache_params": frozenset({"632b7ebca19cf028"}),
    "delta with cache": frozenset({"ee413506507138ff"}),
    "causal_conv1d_update": frozenset({"3c7cbf55a0ade1ca"}),
    "torch_recurrent_gated_delta_rule": frozenset({"4666876549c5bd35", "13fdd0438a5e7f5d"}),
    "l2norm": frozenset({"c961b87a7261c231"}),
    "update_recurrent_state": frozenset({"c96a7d1cb9425851"}),
}
"""Fingerprints of forms, by what they compute."""


class _Bare(ast.NodeTransformer):
    """Removes annotations and docstrings."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


@functools.cache
def _folders() -> tuple[pathlib.Path, ...]:
    """Where the code of the libraries lies that may wrap a function of theirs."""
    specs = (importlib.util.find_spec(name) for name in ("transformers", "torch", "kernels"))
    return tuple(pathlib.Path(it.origin).parent for it in specs if it is not None and it.origin)


def _chain(function: Any) -> list[Any]:
    """A function and what it wraps, outermost first."""
    kind = type(function)
    if kind.__module__.startswith("kernels.") and "forward" not in vars(function):
        # The package `kernels` makes a module of a function, which its method closes over.
        cells = kind.forward.__closure__ or ()
        function = next((it.cell_contents for it in cells if inspect.isfunction(it.cell_contents)), function)
    found = [function]
    while (inner := getattr(found[-1], "__wrapped__", None)) is not None and inner not in found:
        found.append(inner)
    return found


def fingerprint(function: Any) -> str | None:
    """The function's fingerprint; None if it has no source, or a wrapper of another library."""
    chain = _chain(function)
    for it in chain:
        code = getattr(it, "__code__", None)
        if code is None:
            return None
        path = pathlib.Path(code.co_filename)
        if not any(path.is_relative_to(folder) for folder in _folders()):
            return None
    return _of_source(chain[-1])


@functools.cache
def _of_source(function: Any) -> str | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    text = ast.unparse(_Bare().visit(tree))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_known(form: str, function: Any) -> bool:
    """Whether the function is of a known form."""
    found = fingerprint(function) if callable(function) else None
    return found is not None and found in KNOWN[form]


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(fingerprint(_named(given)), given)
