#!/usr/bin/env python3
"""Renders docs/api.md from the docstrings of what users call. It reads the source and imports nothing.

Usage: scripts/api_page.py [--check]. With --check nothing is written; exit status 1 when the page is out of date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python/tensorlease"
PAGE = ROOT / "docs/api.md"
HEAD = """# API

Rendered from the docstrings by `scripts/api_page.py`: edit those. The annotations have the types, and `help(tl.Store.get)` says the same."""
#: Public functions beside the store: the module, the file and the names.
OTHER_FUNCTIONS = [
    ("tensorlease.metrics", "metrics.py", ["register"]),
    (
        "tensorlease.transfer_queue",
        "transfer_queue/plugin.py",
        ["install", "uninstall", "installed", "runtime_env", "setup_worker"],
    ),
]
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: `:param name:`, `:returns:` or `:raises Kind:` at the beginning of a line, and all that belongs to it.
FIELD = re.compile(r"^:(param|returns|raises) ?([^:]*): (.*?)(?=^:|\Z)", re.DOTALL | re.MULTILINE)
#: A twin has no text but the name of the method that it is for.
TWIN = re.compile(r"``(\w+)`` for asyncio\.")


def page() -> str:
    store, errors = _parsed("store.py"), _parsed("errors.py")
    parts = [HEAD, *_function("tl.", _named(store, "open"), store), *_class("Store", store)]
    parts += _function("tl.", _named(store, "warm_up_jagged"), store)
    parts += ["## Errors", *_errors(errors), "## Other modules"]
    for name, file, functions in OTHER_FUNCTIONS:
        module = _parsed(file)
        for function in functions:
            parts += _function(f"{name}.", _named(module, function), module, level=3)
    return "\n\n".join(parts) + "\n"


def _parsed(path: str) -> ast.Module:
    return ast.parse((PACKAGE / path).read_text(encoding="utf-8"))


def _named(module: ast.Module, name: str) -> Function:
    for node in module.body:
        if isinstance(node, Function) and node.name == name:
            return node
    raise SystemExit(f"docs/api.md: there is no function {name} any more; correct scripts/api_page.py")


def _function(prefix: str, node: Function, module: ast.Module, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} `{prefix}{node.name}({_arguments(node, module)})`"
    yield from _text(ast.get_docstring(node) or "")


def _class(name: str, module: ast.Module) -> Iterator[str]:
    (node,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
    yield f"## `tl.{name}`"
    yield from _text(ast.get_docstring(node) or "")
    twins = []
    for method in node.body:
        if not isinstance(method, Function) or method.name.startswith("_"):
            continue
        if twin := TWIN.fullmatch(ast.get_docstring(method) or ""):
            twins.append(f"`{method.name}` for `{twin.group(1)}`")
        elif any(isinstance(mark, ast.Name) and mark.id == "property" for mark in method.decorator_list):
            yield f"### `store.{method.name}`"
            yield from _text(ast.get_docstring(method) or "")
        else:
            yield from _function("store.", method, module, level=3)
    yield "### Twins for asyncio"
    yield f"{', '.join(twins)}. Each takes the same arguments, and gives the same results and errors."


def _errors(module: ast.Module) -> Iterator[str]:
    rows = ["| error | also a | when |", "| --- | --- | --- |"]
    for node in module.body:
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)] if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.ClassDef) and "Error" in bases:
            also = ", ".join(f"`{base}`" for base in bases if base != "Error")
            rows.append(f"| `{node.name}` | {also} | {_line(ast.get_docstring(node) or '')} |")
    (base,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Error")
    yield from _text(ast.get_docstring(base) or "")
    yield "\n".join(rows)


def _arguments(node: Function, module: ast.Module) -> str:
    """The arguments with their defaults, without `self` and without types."""
    every = node.args
    defaults: list[ast.expr | None] = [None] * (len(every.args) - len(every.defaults))
    defaults += every.defaults
    shown = [_argument(argument.arg, default, module) for argument, default in zip(every.args, defaults, strict=True)]
    if every.kwonlyargs:
        shown.append("*")
    for argument, default in zip(every.kwonlyargs, every.kw_defaults, strict=True):
        shown.append(_argument(argument.arg, default, module))
    return ", ".join(name for name in shown if name != "self")


def _argument(name: str, default: ast.expr | None, module: ast.Module) -> str:
    if default is None:
        return name
    text = ast.unparse(default)
    # A constant of the module stands for its value.
    constants = {
        ast.unparse(node.targets[0]): ast.unparse(node.value) for node in module.body if isinstance(node, ast.Assign)
    }
    return f"{name}={constants.get(text, text)}".replace("'", '"')


def _text(docstring: str) -> Iterator[str]:
    """Paragraphs, then arguments, result and errors as one list."""
    prose = FIELD.sub("", docstring).strip()
    yield from (_line(paragraph) for paragraph in re.split(r"\n\s*\n", prose) if paragraph.strip())
    fields = list(FIELD.finditer(docstring))
    if fields:
        yield "\n".join(f"- {_label(field.group(1), field.group(2))}: {_line(field.group(3))}" for field in fields)


def _label(kind: str, names: str) -> str:
    quoted = ", ".join(f"`{name.strip()}`" for name in names.split(",") if name.strip())
    return {"param": quoted, "returns": "returns", "raises": f"raises {quoted}"}[kind]


def _line(text: str) -> str:
    """One paragraph on one line, in Markdown."""
    text = " ".join(text.split()).replace("``", "`")
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", text)


def main(arguments: list[str]) -> int:
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in arguments:
        print("docs/api.md is not what the docstrings say; run scripts/api_page.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
