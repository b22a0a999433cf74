"""The modules of a Rust crate: which file defines each name, and which file names it. Just enough of Rust's rules of paths."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import rust_source

_OUTER = re.compile(
    r"""
    (?P<open>[\{\(\[]) | (?P<close>[\}\)\]])
  | \b(?P<inline>mod)\s+(?P<inline_name>\w+)\s*\{
  | \bmod\s+(?P<child>\w+)\s*;
  | (?P<visible>\bpub(?:\s*\([^)]*\))?\s+)?\buse\s+(?P<use>[^;]*);
  | \bmacro_rules!\s*(?P<macro>\w+)
  | \b(?:struct|enum|union|trait|type|fn|static|const)\s+(?:mut\s+)?(?:r\#)?(?P<item>[A-Za-z]\w*)
    """,
    re.VERBOSE,
)
_PATH = re.compile(r"(?<![\w:])(?P<path>\w+(?:\s*::\s*\w+)+)")
_MACRO_CALL = re.compile(r"(?<![\w:])(\w+)!")
_WORD = re.compile(r"\w+")
_IMPL = re.compile(r"\bimpl\b\s*(?:<[^{;]*?>\s*)?(?P<path>\w+(?:\s*::\s*\w+)*)\s*(?:<[^{]*?>\s*)?(?:where\b[^{]*)?\{")
_FUNCTION = re.compile(r"\bfn\s+(\w+)")
_METHOD_CALL = re.compile(r"(?:\.\s*(?P<called>\w+)\s*(?:::\s*<[^>]*>\s*)?\()|(?:::\s*(?P<named>\w+)\b)")


@dataclass(frozen=True)
class Edge:
    """The file `path` names `name`, which the file `target` defines."""

    path: str
    line: int
    name: str
    target: str


@dataclass(frozen=True)
class Import:
    """One name that a `use` brings in; `name` is `*` for all names of a module."""

    name: str
    path: tuple[str, ...]
    line: int
    public: bool


@dataclass
class Module:
    """One module; an inline one shares its file with its parent."""

    file: str
    at: tuple[str, ...]
    children: set[str] = field(default_factory=set)
    items: set[str] = field(default_factory=set)
    macros: set[str] = field(default_factory=set)
    imports: list[Import] = field(default_factory=list)
    #: What is left of the module without its `use`s and inline modules, position for position.
    code: str = ""


class Crate:
    """All modules of one crate, from the sources of its files without tests."""

    def __init__(self, root: str, sources: dict[str, str]) -> None:
        self.modules: dict[tuple[str, ...], Module] = {}
        dropped: list[str] = []
        for path in sorted(sources, key=lambda path: (path.count("/"), path)):
            if any(path == file or path.startswith(_folder(file)) for file in dropped):
                continue
            code, tests = rust_source.without_tests(sources[path])
            dropped += [rust_source.module_file(root, path, name) for name in tests]
            self._add(path, rust_source.module_of(root, path), code, 0, len(code))

    def _add(self, file: str, at: tuple[str, ...], code: str, start: int, end: int) -> None:
        module = self.modules.setdefault(at, Module(file, at))
        left = [" "] * start + list(code[start:end])
        depth, position = 0, start
        while match := _OUTER.search(code, position, end):
            position = match.end()
            if match["open"]:
                depth += 1
            elif match["close"]:
                depth -= 1
            elif match["inline"]:
                closing = rust_source.closing_brace(code, match.end() - 1)
                module.children.add(match["inline_name"])
                self._add(file, (*at, match["inline_name"]), code, match.end(), closing)
                _blank(left, match.start(), closing + 1)
                position = closing + 1
            elif match["child"]:
                module.children.add(match["child"])
            elif match["use"]:
                line = rust_source.line_of(code, match.start("use"))
                module.imports += [
                    Import(name, path, line, bool(match["visible"])) for name, path in use_leaves(match["use"])
                ]
                _blank(left, match.start(), match.end())
            elif match["macro"]:
                module.macros.add(match["macro"])
            elif depth == 0:
                module.items.add(match["item"])
        module.code = "".join(left)

    def edges(self) -> Iterator[Edge]:
        methods = self._methods_elsewhere()
        for module in self.modules.values():
            for line, name, target in self._named(module):
                if target != module.file:
                    yield Edge(module.file, line, name, target)
            for match in _METHOD_CALL.finditer(module.code):
                name = match["called"] or match["named"]
                target, owner = methods.get(name, (module.file, module.file))
                # A type may be cut into files below its own: they are one.
                one = all(file == owner or file.startswith(_folder(owner)) for file in (module.file, target))
                if target != module.file and not one:
                    yield Edge(module.file, rust_source.line_of(module.code, match.start()), name, target)

    def _methods_elsewhere(self) -> dict[str, tuple[str, str]]:
        """The methods that an `impl` adds outside the file of its type: that file and the type's; only names that no other function has."""
        functions = Counter(name for module in self.modules.values() for name in _FUNCTION.findall(module.code))
        found: dict[str, tuple[str, str]] = {}
        for module in self.modules.values():
            for match in _IMPL.finditer(module.code):
                target = self.find(module, tuple(re.split(r"\s*::\s*", match["path"])))
                if target and target != module.file:
                    body = module.code[match.end() : rust_source.closing_brace(module.code, match.end() - 1)]
                    found |= {name: (module.file, target) for name in _FUNCTION.findall(body) if functions[name] == 1}
        return found

    def _named(self, module: Module) -> Iterator[tuple[int, str, str]]:
        words = set(_WORD.findall(module.code))
        for entry in module.imports:
            if entry.name == "*":
                yield from self._named_by_glob(module, entry)
            # A re-export that its own file doesn't use is no use of it.
            elif (not entry.public or entry.name in words) and (target := self.find(module, entry.path)):
                yield entry.line, entry.path[-1], target
        for match in _PATH.finditer(module.code):
            path = tuple(re.split(r"\s*::\s*", match["path"]))
            if target := self.find(module, path):
                name = next(part for part in reversed(path) if part not in ("self", "super", "crate"))
                yield rust_source.line_of(module.code, match.start()), name, target
        for match in _MACRO_CALL.finditer(module.code):
            if target := self._textual_macro(module, match[1]):
                yield rust_source.line_of(module.code, match.start()), match[1], target

    def _named_by_glob(self, module: Module, entry: Import) -> Iterator[tuple[int, str, str]]:
        base = self._walk(module, entry.path, set())
        if isinstance(base, Module):
            for match in _WORD.finditer(module.code):
                found = self._member(base, (match[0],), set())
                if isinstance(found, str):
                    yield rust_source.line_of(module.code, match.start()), match[0], found
        elif base:
            yield entry.line, entry.path[-1], base

    def _textual_macro(self, module: Module, name: str) -> str | None:
        """The file of an enclosing module that defines a macro before it declares this one."""
        if any(entry.name == name for entry in module.imports):
            return None
        for length in range(len(module.at), -1, -1):
            outer = self.modules.get(module.at[:length])
            if outer and name in outer.macros:
                return outer.file
        return None

    def find(self, module: Module, path: tuple[str, ...]) -> str | None:
        """The file that defines what a path names; None for a module, and for what another crate defines."""
        found = self._walk(module, path, set())
        return found if isinstance(found, str) else None

    def _walk(self, module: Module, path: tuple[str, ...], seen: set[object]) -> Module | str | None:
        here = module
        if path[0] in ("crate", "self", "super"):
            rest = path
            while rest and rest[0] in ("crate", "self", "super"):
                at = {"crate": (), "self": here.at, "super": here.at[:-1]}[rest[0]]
                here, rest = self.modules[at], rest[1:]
            # A name that no item has comes from a macro of that module.
            return self._member(here, rest, seen) or here.file if rest else here
        return self._member(here, path, seen)

    def _member(self, module: Module, path: tuple[str, ...], seen: set[object]) -> Module | str | None:
        """What a path names that begins in a module; a name may stand for a module and an item at once."""
        if (module.at, path) in seen:
            return None
        seen.add((module.at, path))
        name, rest = path[0], path[1:]
        child = self.modules.get((*module.at, name)) if name in module.children else None
        if child and rest:
            return self._member(child, rest, seen) or child.file
        if name in module.items or name in module.macros:
            return module.file
        for entry in module.imports:
            if entry.name == name and (found := self._walk(module, entry.path + rest, seen)):
                return found
        for entry in module.imports:
            if entry.name == "*":
                base = self._walk(module, entry.path, seen)
                if isinstance(base, Module) and (found := self._member(base, path, seen)):
                    return found
        return child


def use_leaves(tree: str) -> list[tuple[str, tuple[str, ...]]]:
    """Each name that a `use` tree brings in, and its path: `a::{b, c as d}` gives `b` of `a::b` and `d` of `a::c`."""
    return list(_leaves(re.sub(r"\s+", " ", tree).strip(), ()))


def _leaves(tree: str, prefix: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    tree = tree.strip()
    head, brace, group = tree.partition("{")
    parts = tuple(part.strip() for part in head.split("::") if part.strip())
    if brace:
        for branch in _branches(group.rsplit("}", 1)[0]):
            yield from _leaves(branch, prefix + parts)
    elif parts:
        last, _, alias = parts[-1].partition(" as ")
        path = prefix + parts[:-1] + (() if last in ("self", "*") and prefix + parts[:-1] else (last,))
        yield ("*" if last == "*" else alias.strip() or path[-1]), path


def _branches(group: str) -> Iterator[str]:
    depth, start = 0, 0
    for index, character in enumerate(group):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield group[start:index]
            start = index + 1
    if group[start:].strip():
        yield group[start:]


def _folder(file: str) -> str:
    """Where the modules lie that a file declares."""
    return file.removesuffix(".rs") + "/"


def _blank(characters: list[str], start: int, end: int) -> None:
    for index in range(start, end):
        if characters[index] != "\n":
            characters[index] = " "
