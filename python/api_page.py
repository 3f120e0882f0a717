"""Writes the Python API as a page: signatures and docstrings of every public name.

    python3 python/api_page.py > docs/python-api.md

It reads the sources and stubs, and imports nothing of them.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent / "src"
PACKAGE = "fercuda_runtime"
MODULES = (
    "scripting_api", "runtime", "ops", "inference", "inference.kernels", "guest_hooks", "platform",
    "execution_contract", "errors",
)  # fmt: skip
HEAD = """# Python API

Every public name of the package `fercuda_runtime`, by module. [The guide](../python/README.md) shows
how they are used; this page is made of their signatures and docstrings by `python/api_page.py`.
"""
# The longest signature on one line.
WIDTH = 96
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function


def source(module: str) -> Path:
    """The file of a module, named with dots."""
    path = ROOT.joinpath(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"), path.with_suffix(".pyi"))
    return next(file for file in candidates if file.is_file())


def parsed(module: str) -> ast.Module:
    return ast.parse(source(module).read_text(encoding="utf-8"))


def imported(module: str, node: ast.ImportFrom) -> str:
    """The module that an import in `module` names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    if source(module).name != "__init__.py":
        parts.pop()
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *filter(None, [node.module])])


def definition(module: str, name: str) -> Definition:
    """The class or function of that name, wherever `module` has it from."""
    for node in parsed(module).body:
        if isinstance(node, Definition) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(imported(module, node), alias.name)
    raise LookupError(f"{module} has no class or function {name}")


def public(module: str) -> list[str]:
    """The names in `__all__`; without it the classes and functions that have no underscore."""
    tree = parsed(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    names = (node.name for node in tree.body if isinstance(node, Definition))
    return [name for name in names if not name.startswith("_")]


def text(node: Definition | ast.Module) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def signature(node: Function, is_method: bool) -> str:
    """A function's signature, over several lines if it is long."""
    arguments = copy.deepcopy(node.args)
    first = next(iter([*arguments.posonlyargs, *arguments.args]), None)
    if is_method and first is not None and first.arg in ("self", "cls"):
        (arguments.posonlyargs or arguments.args).pop(0)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    name = f"async {node.name}" if isinstance(node, ast.AsyncFunctionDef) else node.name
    line = f"{name}({ast.unparse(arguments)}){result}"
    if len(line) <= WIDTH:
        return line
    parts, depth, part = [], 0, ""
    for sign in ast.unparse(arguments):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append(part.strip())
            part = ""
        else:
            part += sign
    parts.append(part.strip())
    body = "".join(f"    {part},\n" for part in parts)
    return f"{name}(\n{body}){result}"


def is_property(node: Function) -> bool:
    return any(ast.unparse(it) == "property" for it in node.decorator_list)


def fields(node: ast.ClassDef | ast.Module) -> Iterator[tuple[str, str]]:
    """Fields and constants with the docstrings behind them."""
    following = [*node.body[1:], None]
    for it, after in zip(node.body, following, strict=True):
        if isinstance(it, ast.AnnAssign):
            shown = ast.unparse(it)
        elif isinstance(it, ast.Assign):
            shown = ast.unparse(it)
        else:
            continue
        if shown.startswith("_"):
            continue
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        said = after.value.value if is_text else ""
        yield shown, inspect.cleandoc(said) if isinstance(said, str) else ""


def item(shown: str, said: str) -> str:
    return f"```python\n{shown}\n```\n{said}\n" if said else f"```python\n{shown}\n```\n"


def grouped(all_fields: Iterator[tuple[str, str]]) -> list[str]:
    """Fields, those without docstrings together."""
    parts: list[str] = []
    plain: list[str] = []
    for shown, said in [*all_fields, ("", "")]:
        if shown and not said:
            plain.append(shown)
            continue
        if plain:
            parts.append(item("\n".join(plain), ""))
            plain = []
        if shown:
            parts.append(item(shown, said))
    return parts


def of_class(node: ast.ClassDef) -> str:
    bases = [ast.unparse(base) for base in node.bases]
    shown = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    parts = [item(shown, text(node))]
    methods = [it for it in node.body if isinstance(it, Function)]
    for it in methods:
        if it.name in ("__init__", "__new__") and len(it.args.args + it.args.kwonlyargs) > 1:
            made = copy.deepcopy(it)
            made.name, made.returns = node.name, None
            parts.append(item(signature(made, True), ""))
    parts += grouped(fields(node))
    seen = set()
    for it in methods:
        if it.name.startswith("_") or (it.name, text(it)) in seen:
            continue
        seen.add((it.name, text(it)))
        if is_property(it):
            kind = f": {ast.unparse(it.returns)}" if it.returns else ""
            parts.append(item(f"{it.name}{kind}", text(it)))
        else:
            parts.append(item(signature(it, True), text(it)))
    return "\n".join(parts)


def page() -> str:
    parts = [HEAD]
    for name in MODULES:
        module = f"{PACKAGE}.{name}"
        parts.append(f"## {module}\n{text(parsed(module))}\n")
        constants = {shown.split(" ")[0]: (shown, said) for shown, said in fields(parsed(module))}
        for each in public(module):
            if each in constants:
                parts.append(f"### {each}\n")
                parts.append(item(*constants[each]))
                continue
            node = definition(module, each)
            parts.append(f"### {each}\n")
            parts.append(of_class(node) if isinstance(node, ast.ClassDef) else item(signature(node, False), text(node)))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


if __name__ == "__main__":
    sys.stdout.write(page())
