#!/usr/bin/env python3
"""House rules that no linter knows, as a test: prints every breach and exits with 1 when there is one.

Usage: scripts/tidy.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rust_source
from code_map import check_code_map
from module_graph import RUST_ROOTS, check_circles, check_rooms
from source_tree import Tree

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 1000
#: Of the Python that the wheel holds, and how many options its command has.
WHEEL = "python/tensorlease/"
WHEEL_LINES_MAX = 7_000
WHEEL_OPTIONS_MAX = 30
#: What the crates and the native module may have without tests, comments and blank lines included. A test is what stands
#: behind `cfg(test)`, and each file behind a feature that only tests switch on.
RUST_LINES_MAX = 28_000
TEST_FEATURES = {"conformance", "test-hooks"}

# Where `unsafe` may stand, and why it must. Everywhere else it is a breach.
UNSAFE_ALLOWED = {
    "crates/memory/src/": "mappings, copies and the kernel's calls: the crate exists to hold this code",
    "crates/memory/tests/": "tests that look at raw memory of that crate",
    "crates/client/tests/behaviour/closing.rs": "forks, to see what a child may do",
    "crates/client/tests/behaviour/deliveries.rs": "memory that the test looks at while the store owns it",
    "crates/client/tests/faults/memory.rs": "memory of the caller that a program looks at while the store uses it",
    "crates/engine/src/decorators/late_writing.rs": "writes to memory after the call returned, on purpose",
    "python/src/dlpack.rs": "the DLPack structures that torch and numpy take over",
    "python/src/exchange.rs": "torch's C exchange interface",
    "python/src/buffer.rs": "the buffer protocol",
    "python/src/numpy_api.rs": "numpy's C interface",
    "python/src/foreign.rs": "memory that Python owns, borrowed for the time of one call",
}

# Lower first: a crate may name those before it, never those after it. The path, then the crate's name in code.
LAYERS = [
    ("crates/arena", "tensorlease_arena"),
    ("crates/memory", "tensorlease_memory"),
    ("crates/engine", "tensorlease_engine"),
    ("crates/host", "tensorlease_host"),
    ("crates/client", "tensorlease"),
    ("python", "_core"),
]

BANNED_STEMS = {"util", "utils", "common", "helper", "helpers", "misc"}
# Written in pieces, so that this file may be checked too.
BANNED_WORDS = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "dbg" + "!", "todo" + "!", "unimplemented" + "!"]

# In these files, the column under such a heading holds names of tests.
TABLES_OF_TESTS = ["docs/requirements.md", "docs/bad_input.md"]
TEST_HEADING = re.compile(r"\btests?\b|shown by", re.IGNORECASE)
#: How many rows of each letter docs/requirements.md has.
REQUIREMENT_ROWS = {"A": 20, "B": 19, "U": 21, "V": 19, "W": 2}
REQUIREMENTS = [f"{letter}{number}" for letter, most in REQUIREMENT_ROWS.items() for number in range(1, most + 1)]
INVARIANTS = 9


def check_lengths(tree: Tree) -> None:
    """No function over 70 lines, no file over 1000."""
    for path, text in tree.files(".rs", ".py", ".pyi", ".sh"):
        lines = len(text.splitlines())
        if lines > FILE_LINES_MAX:
            tree.report(path, 1, f"{lines} lines; a file has at most {FILE_LINES_MAX}: split it by concept")
        for name, first, last in _function_spans(path, text):
            if last - first + 1 > FUNCTION_LINES_MAX:
                tree.report(
                    path, first, f"`{name}` has {last - first + 1} lines; at most {FUNCTION_LINES_MAX}: split it"
                )


def _function_spans(path: str, text: str) -> Iterator[tuple[str, int, int]]:
    if path.endswith(".rs"):
        for function in rust_source.functions(text):
            yield function.name, function.first_line, function.last_line
    elif path.endswith((".py", ".pyi")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, node.lineno, node.end_lineno or node.lineno


def check_wheel(tree: Tree) -> None:
    """The wheel's Python stays small, and so does its command. What only measures or shows is in `bench/`."""
    lines, options = 0, []
    for path, text in tree.files(".py"):
        if path.startswith(WHEEL):
            lines += len(text.splitlines())
            options += _options(text) if "import argparse" in text else []
    if lines > WHEEL_LINES_MAX:
        tree.report(WHEEL, 1, f"{lines} lines of Python; the wheel has at most {WHEEL_LINES_MAX}")
    if len(options) > WHEEL_OPTIONS_MAX:
        tree.report(
            WHEEL, 1, f"{len(options)} options; the command has at most {WHEEL_OPTIONS_MAX}: {', '.join(options)}"
        )


def _options(text: str) -> list[str]:
    constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str) and re.fullmatch(r"--[a-z][a-z-]*", value)]


def check_rust_lines(tree: Tree) -> None:
    """The crates and the native module together stay below a limit."""
    lines = sum(rust_lines(tree, root) for root in RUST_ROOTS)
    if lines > RUST_LINES_MAX:
        tree.report("crates", 1, f"{lines} lines of Rust without tests, python/src included; at most {RUST_LINES_MAX}")


def rust_lines(tree: Tree, root: str) -> int:
    """The lines of the files in a folder that no test feature brings in, without what only tests compile."""
    sources = {path: text for path, text in tree.files(".rs") if path.startswith(root + "/")}
    left_out: set[str] = set()
    for path, text in sources.items():
        left_out |= {rust_source.module_file(root, path, name) for name in rust_source.test_files(text, TEST_FEATURES)}
    folders = tuple(file.removesuffix(".rs") + "/" for file in left_out)
    return sum(
        rust_source.lines_without_tests(text)
        for path, text in sources.items()
        if path not in left_out and not path.startswith(folders)
    )


def check_unsafe(tree: Tree) -> None:
    """`unsafe` only in the listed files, and every use argued for."""
    for path, text in tree.files(".rs"):
        allowed = any(path.startswith(place) for place in UNSAFE_ALLOWED)
        for use in rust_source.unsafe_uses(text):
            if not allowed:
                tree.report(path, use.line, "`unsafe` outside the files listed in scripts/tidy.py")
            elif not rust_source.has_safety_argument(text, use):
                tree.report(
                    path, use.line, f"unsafe {use.what} without a SAFETY comment (for a fn: a `# Safety` section)"
                )


def check_names(tree: Tree) -> None:
    """A file is named for the one thing it holds."""
    for path in tree.paths:
        for part in (Path(path).stem, *Path(path).parent.parts):
            if part.lower() in BANNED_STEMS:
                tree.report(path, 1, f"`{part}` says nothing; name the file for the one thing it holds")


def check_layers(tree: Tree) -> None:
    """A lower crate never names a higher one, in its manifest or its code."""
    for level, (folder, _) in enumerate(LAYERS):
        for _, higher in LAYERS[level + 1 :]:
            _check_layer(tree, folder, higher)


def _check_layer(tree: Tree, folder: str, higher: str) -> None:
    # `tensorlease` alone is the client crate; `tensorlease_arena` and "tensorlease.dropped" in a string are not.
    in_code = re.compile(rf"(?<![\w.]){re.escape(higher)}(?!\w)\s*(::|;|as\b)")
    in_manifest = re.compile(rf'^"?{re.escape(higher.replace("_", "-"))}"?\s*[.=]', re.MULTILINE)
    for path, text in tree.files(".rs"):
        if path.startswith(folder + "/"):
            for match in in_code.finditer(rust_source.mask(text)):
                tree.report(
                    path, rust_source.line_of(text, match.start()), f"`{folder}` names the higher crate `{higher}`"
                )
    manifest = f"{folder}/Cargo.toml"
    if manifest in tree.paths:
        text = (tree.root / manifest).read_text(encoding="utf-8")
        for match in in_manifest.finditer(text):
            tree.report(
                manifest, rust_source.line_of(text, match.start()), f"`{folder}` depends on the higher crate `{higher}`"
            )


def check_words(tree: Tree) -> None:
    """Nothing is left for later in the code."""
    pattern = re.compile("|".join(rf"\b{re.escape(word)}" for word in BANNED_WORDS))
    for path, text in tree.files(".rs", ".py", ".pyi", ".sh", ".toml", ".md", "Makefile"):
        for match in pattern.finditer(text):
            tree.report(path, rust_source.line_of(text, match.start()), f"`{match.group()}`: finish it or file it")


def check_links(tree: Tree) -> None:
    """Every local link in Markdown leads to a file, and to a heading where it names one."""
    for path, text in tree.files(".md"):
        for match in re.finditer(r"\]\(([^)\s]+)\)", _without_code(text)):
            target, _, anchor = match.group(1).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            line = rust_source.line_of(text, match.start())
            file = (tree.root / path).parent / target if target else tree.root / path
            if not file.exists():
                tree.report(path, line, f"link to `{target}`, which does not exist")
            elif anchor and file.suffix == ".md" and anchor not in _anchors(file.read_text(encoding="utf-8")):
                tree.report(path, line, f"link to the heading `#{anchor}`, which `{target or path}` does not have")


def _without_code(text: str) -> str:
    """Markdown with fenced blocks and inline code blanked out, line for line."""
    return re.sub(
        r"^```.*?^```|`[^`\n]+`", lambda code: re.sub(r"[^\n]", " ", code.group()), text, flags=re.DOTALL | re.MULTILINE
    )


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+\s+(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def check_named_tests(tree: Tree) -> None:
    """Every test that a document names exists."""
    known = _known_tests(tree)
    for path in TABLES_OF_TESTS:
        if path in tree.paths:
            for line, name in _tests_in_table((tree.root / path).read_text(encoding="utf-8")):
                _require(tree, known, path, line, name)
    if "ARCHITECTURE.md" in tree.paths:
        _check_invariants(tree, known)


def check_requirements(tree: Tree) -> None:
    """Every requirement has its row, and each row names a test."""
    path = "docs/requirements.md"
    if path not in tree.paths:
        return
    rows = {}
    for number, line in enumerate((tree.root / path).read_text(encoding="utf-8").splitlines(), 1):
        if match := re.match(r"\| ([ABUVW]\d+) \| [^|]+ \|([^|]*)\|", line):
            rows[match.group(1)] = number
            if "`" not in match.group(2):
                tree.report(path, number, f"{match.group(1)} names no test")
    for name in sorted(set(REQUIREMENTS) - set(rows)):
        tree.report(path, 1, f"has no row for {name}")


def _known_tests(tree: Tree) -> set[str]:
    """Names of tests, of the conformance suite's checks, and paths of files (a benchmark, an example, a fuzz target)."""
    known = set(tree.paths)
    for path, text in tree.files(".rs"):
        suite = "conformance" in path
        for function in rust_source.functions(text):
            if function.is_test or suite:
                known.add(function.name)
    for _, text in tree.files(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                known.add(node.name)
    return known


def _require(tree: Tree, known: set[str], path: str, line: int, name: str) -> None:
    # `crate::file::test` and `tests/test_x.py::test` name the test last.
    if name not in known and re.split(r"::", name)[-1] not in known:
        tree.report(path, line, f"names the test `{name}`, which does not exist")


def _tests_in_table(text: str) -> Iterator[tuple[int, str]]:
    columns: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not columns:
            columns = [index for index, cell in enumerate(cells) if TEST_HEADING.search(cell)] or [-1]
            continue
        for index in columns:
            if 0 <= index < len(cells):
                yield from ((number, name) for name in re.findall(r"`([^`]+)`", cells[index]))


def _check_invariants(tree: Tree, known: set[str]) -> None:
    path = "ARCHITECTURE.md"
    text = (tree.root / path).read_text(encoding="utf-8")
    section = re.search(r"^## Invariants$(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    if section is None:
        tree.report(path, 1, "has no section `## Invariants`")
        return
    items = list(re.finditer(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", section.group(1), flags=re.DOTALL | re.MULTILINE))
    numbers = [int(item.group(1)) for item in items]
    if numbers != list(range(1, INVARIANTS + 1)):
        tree.report(path, 1, f"the invariants are numbered {numbers}; want 1 to {INVARIANTS}")
    for item in items:
        line = rust_source.line_of(text, section.start(1) + item.start())
        _, _, checked_by = item.group(2).partition("Checked by")
        names = re.findall(r"`([^`]+)`", checked_by)
        if not names:
            tree.report(
                path, line, f"invariant {item.group(1)} names no test: end it with `Checked by` and at least one"
            )
        for name in names:
            _require(tree, known, path, line, name)


def check_counters(tree: Tree) -> None:
    """Every counter of a store is explained in docs/stats.md and has a text for Prometheus, and nothing else has."""
    source, document, metrics = "crates/client/src/stats.rs", "docs/stats.md", "python/tensorlease/metrics.py"
    if not {source, document, metrics} <= set(tree.paths):
        return
    named = set()
    for path, text in tree.files(".rs"):
        if path.startswith("crates/client/src/"):
            named |= set(re.findall(r'\.push\(\s*"(\w+)"', text)) | set(re.findall(r'\("(\w+_seconds)"', text))
    for _, text in tree.files("python/tensorlease/store.py"):
        named |= set(re.findall(r'numbers\["(\w+)"\] = ', text))
    block = re.search(
        r"^counters! \{(.*?)^\}", (tree.root / source).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    named |= set(re.findall(r"^\s+(\w+),", block.group(1), flags=re.MULTILINE)) if block else set()
    text = (tree.root / metrics).read_text(encoding="utf-8")
    tables = re.findall(r"^(?:GROWING|HELD_NOW) = \{(.*?)^\}", text, flags=re.DOTALL | re.MULTILINE)
    explained = {
        metrics: set(re.findall(r'^    "(\w+)": ', "".join(tables), flags=re.MULTILINE)),
        document: set(
            re.findall(r"^\| `(\w+)`", (tree.root / document).read_text(encoding="utf-8"), flags=re.MULTILINE)
        ),
    }
    for path, names in explained.items():
        for name in sorted(named - names):
            tree.report(path, 1, f"the counter `{name}` is not explained")
        for name in sorted(names - named):
            tree.report(path, 1, f"explains `{name}`, which is no counter of a store")


CHECKS = [
    check_lengths,
    check_wheel,
    check_rust_lines,
    check_circles,
    check_rooms,
    check_unsafe,
    check_names,
    check_layers,
    check_words,
    check_links,
    check_code_map,
    check_named_tests,
    check_requirements,
    check_counters,
]


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    tree = Tree.at(root)
    for check in CHECKS:
        check(tree)
    for breach in tree.breaches:
        print(breach)
    print(f"tidy: {len(tree.paths)} files, {len(tree.breaches)} breaches")
    return 1 if tree.breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
