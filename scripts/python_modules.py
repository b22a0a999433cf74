"""The modules of a Python package: which file defines each name, and which file names it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from rust_modules import Edge


@dataclass
class Module:
    """One file; `imports` has what each imported name stands for: a dotted path, whole."""

    file: str
    syntax: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


class Package:
    """All modules of the package in the folder `root`. Imports for types and within functions count like others."""

    def __init__(self, root: str, sources: dict[str, str]) -> None:
        self.modules: dict[str, Module] = {}
        above = root.rpartition("/")[0]
        for path, text in sources.items():
            name = path.removeprefix(above + "/" if above else "").removesuffix(".py").removesuffix("/__init__")
            self.modules[name.replace("/", ".")] = Module(path, ast.parse(text))
        for name, module in self.modules.items():
            for node in ast.walk(module.syntax):
                self._add_imports(name, module, node)

    def _add_imports(self, name: str, module: Module, node: ast.AST) -> None:
        found: dict[str, str] = {}
        if isinstance(node, ast.ImportFrom):
            base = self._base(name, module, node)
            found = {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found = {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names if alias.asname}
            found |= {
                alias.name.partition(".")[0]: alias.name.partition(".")[0] for alias in node.names if not alias.asname
            }
        for local, path in found.items():
            module.imports.setdefault(local, path)
            module.lines.setdefault(local, getattr(node, "lineno", 1))

    def _base(self, name: str, module: Module, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = name.split(".") if module.file.endswith("/__init__.py") else name.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def edges(self) -> Iterator[Edge]:
        for module in self.modules.values():
            facade = module.file.endswith("/__init__.py")
            paths = list(_dotted_paths(module.syntax))
            used = {path.partition(".")[0] for path, _ in paths}
            named = [
                (path, module.lines[local]) for local, path in module.imports.items() if local in used or not facade
            ]
            for path, line in paths:
                local, dot, rest = path.partition(".")
                if local in module.imports:
                    named.append((module.imports[local] + dot + rest, line))
            for path, line in named:
                target = self.find(path)
                if target and target != module.file:
                    yield Edge(module.file, line, path.rpartition(".")[2], target)

    def find(self, path: str) -> str | None:
        """The file that defines what a dotted path names; None for a module as such, and for what is not of this package."""
        seen: set[str] = set()
        while path not in seen:
            seen.add(path)
            name, rest = path, ""
            while name and name not in self.modules:
                name, _, last = name.rpartition(".")
                rest = f"{last}.{rest}" if rest else last
            if not name or not rest:
                return None
            module = self.modules[name]
            head, dot, tail = rest.partition(".")
            if head not in module.imports:
                return module.file
            path = module.imports[head] + dot + tail
        return None


def _dotted_paths(syntax: ast.Module) -> Iterator[tuple[str, int]]:
    """Each name with the attributes asked of it, as `a.b.c`."""
    inner: set[ast.expr] = set()
    for node in ast.walk(syntax):
        if isinstance(node, ast.Attribute | ast.Name) and node not in inner:
            parts: list[str] = []
            at: ast.expr = node
            while isinstance(at, ast.Attribute):
                parts.append(at.attr)
                at = at.value
                inner.add(at)
            if isinstance(at, ast.Name):
                yield ".".join([at.id, *reversed(parts)]), node.lineno
