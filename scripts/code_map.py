"""ARCHITECTURE.md's code map names every source file, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import rust_source
from source_tree import Tree

DOCUMENT = "ARCHITECTURE.md"
#: Files that need no row: they say which others there are.
_UNNAMED = {"lib.rs", "__init__.py", "__main__.py"}


def check_code_map(tree: Tree) -> None:
    """Each file that the map names exists, and each source file of a folder that it describes is named there."""
    if DOCUMENT not in tree.paths:
        return
    text = (tree.root / DOCUMENT).read_text(encoding="utf-8")
    known = set(tree.paths)
    folders = {path.rpartition("/")[0] + "/" for path in known}
    named: dict[str, set[str]] = {}
    for line, root, name in _named(text):
        named.setdefault(root, set()).add(name)
        if f"{root}/{name}" not in (folders if name.endswith("/") else known):
            tree.report(DOCUMENT, line, f"the code map names `{name}`, which is not in {root}")
    for root, names in named.items():
        for path in sorted(_sources(tree, root)):
            name = path.removeprefix(root + "/")
            if name.rpartition("/")[2] not in _UNNAMED and not _covers(names, name):
                tree.report(DOCUMENT, 1, f"the code map has no row for {path}")


def _covers(names: set[str], name: str) -> bool:
    return name in names or any(name.startswith(folder) for folder in names if folder.endswith("/"))


def _named(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, folder and name of each file in the first column of a table that begins with `file`."""
    heading = root = None
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            inside = line == "## Code map"
        if match := re.match(r"### `(crates/\w+)`", line):
            heading = f"{match[1]}/src"
        if not line.startswith("|"):
            root = None
        elif match := re.match(r"\| file(?: in `([\w/]+)`)? \|", line):
            root = match[1] or heading
        elif inside and root:
            yield from ((number, root, name) for name in re.findall(r"`([\w/.]+)`", line.split("|")[1]))


def _sources(tree: Tree, root: str) -> set[str]:
    rust = {path: text for path, text in tree.files(".rs") if path.startswith(root + "/")}
    tests = {
        rust_source.module_file(root, path, name)
        for path, text in rust.items()
        for name in rust_source.without_tests(text)[1]
    }
    folders = tuple(file.removesuffix(".rs") + "/" for file in tests)
    python = {path for path, _ in tree.files(".py") if path.startswith(root + "/")}
    return {path for path in set(rust) - tests if not path.startswith(folders)} | python
