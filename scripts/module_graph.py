"""Who names whom: no circle of files, and no name from a room that another must not know."""

from __future__ import annotations

import re
from collections.abc import Iterable

from python_modules import Package
from rust_modules import Crate, Edge
from source_tree import Tree

RUST_ROOTS = [
    "crates/arena/src",
    "crates/memory/src",
    "crates/engine/src",
    "crates/host/src",
    "crates/client/src",
    "python/src",
]
PYTHON_ROOTS = ["python/tensorlease"]

#: Circles that may stand, and why.
CIRCLES_ALLOWED = {
    frozenset(
        {"crates/memory/src/books.rs", "crates/memory/src/slab.rs"}
    ): "a guard, and the books of the pool that made it",
}

_CLIENT = "crates/client/src/"
#: The reference's own way and the baseline. The product is whole without this folder.
REFERENCE = _CLIENT + "per_call"
#: A room, and those that it must not name. A room is a folder, and the file beside it of that name.
FORBIDDEN_ROOMS = {
    _CLIENT + "read": [_CLIENT + "write", REFERENCE],
    _CLIENT + "write": [_CLIENT + "read", REFERENCE],
}
#: Files of the hot path, and words that don't belong there: names of `pool=store`, of loans and of the baseline.
FORBIDDEN_WORDS = {
    rf"{_CLIENT}(read|write)/(job|land|execute)(/.*)?\.rs": re.compile(
        r"loan|(?<![a-z])(un)?len[dt](s|ing)?(?![a-z])|pool.?store|register.?per.?call|batch.?keys|baseline",
        re.I,
    )
}


def edges_of(tree: Tree) -> list[Edge]:
    """Each first naming of a file by another of its crate or package."""
    edges: dict[tuple[str, str], Edge] = {}
    rust = dict(tree.files(".rs"))
    python = dict(tree.files(".py"))
    for root in RUST_ROOTS:
        _keep_first(edges, Crate(root, _below(root, rust)).edges())
    for root in PYTHON_ROOTS:
        _keep_first(edges, Package(root, _below(root, python)).edges())
    return sorted(edges.values(), key=lambda edge: (edge.path, edge.line))


def _below(root: str, sources: dict[str, str]) -> dict[str, str]:
    return {path: text for path, text in sources.items() if path.startswith(root + "/")}


def _keep_first(edges: dict[tuple[str, str], Edge], found: Iterable[Edge]) -> None:
    for edge in found:
        known = edges.setdefault((edge.path, edge.target), edge)
        if edge.line < known.line:
            edges[edge.path, edge.target] = edge


def check_circles(tree: Tree) -> None:
    """No files that name each other in a circle. A file that only declares or re-exports another doesn't name it."""
    edges = edges_of(tree)
    for circle in circles(edges):
        if not any(circle <= allowed for allowed in CIRCLES_ALLOWED):
            for edge in edges:
                if edge.path in circle and edge.target in circle:
                    names = f"names `{edge.name}` of {edge.target}"
                    tree.report(edge.path, edge.line, f"{names}: {len(circle)} files name each other in a circle")


def circles(edges: list[Edge]) -> list[set[str]]:
    """The largest sets of files in which each reaches each other (Tarjan's strongly connected components)."""
    targets: dict[str, list[str]] = {}
    for edge in edges:
        targets.setdefault(edge.path, []).append(edge.target)
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(file: str) -> None:
        order[file] = low[file] = len(order)
        path.append(file)
        for target in targets.get(file, []):
            if target not in order:
                visit(target)
                low[file] = min(low[file], low[target])
            elif target in path:
                low[file] = min(low[file], order[target])
        if low[file] == order[file]:
            circle = set(path[path.index(file) :])
            del path[path.index(file) :]
            if len(circle) > 1:
                found.append(circle)

    for file in sorted(targets):
        if file not in order:
            visit(file)
    return found


def check_rooms(tree: Tree) -> None:
    """No room of the client names one that it must not know, neither by an item nor by a word."""
    edges = edges_of(tree)
    known = {room for rule in FORBIDDEN_ROOMS.items() for room in (rule[0], *rule[1])}
    for room in sorted(known) if _CLIENT + "lib.rs" in tree.paths else []:
        if not any(_is_in(path, room) for path in tree.paths):
            tree.report(_CLIENT + "lib.rs", 1, f"scripts/module_graph.py has a rule about {room}, which is not there")
    for room, forbidden in FORBIDDEN_ROOMS.items():
        for edge in edges:
            if _is_in(edge.path, room) and any(_is_in(edge.target, other) for other in forbidden):
                names = f"names `{edge.name}` of {edge.target}"
                tree.report(edge.path, edge.line, f"{names}, which {room} must not know")
    for path, text in tree.files(".rs"):
        for place, words in FORBIDDEN_WORDS.items():
            if re.fullmatch(place, path):
                for number, line in enumerate(text.splitlines(), 1):
                    if match := words.search(line):
                        tree.report(
                            path, number, f"`{match.group()}` belongs to {REFERENCE}, which this file must not know"
                        )


def _is_in(path: str, room: str) -> bool:
    return path == room + ".rs" or path.startswith(room + "/")
