"""Just enough of Rust's grammar to find functions, tests and unsafe code in a source file, without a dependency."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

# What masking blanks out: comments, then every kind of literal that may hold braces or keywords.
_TOKEN = re.compile(
    r"""
    (?P<line>//[^\n]*)
  | (?P<block>/\*)
  | (?P<raw>\b(?:br|cr|r)(?P<hashes>\#*)")
  | (?P<string>(?:\b[bc])?"(?:\\.|[^"\\])*")
  | (?P<char>(?:\bb)?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\}|.)|[^'\\\n])')
    """,
    re.VERBOSE | re.DOTALL,
)
_FUNCTION = re.compile(r"\bfn\s+(r#)?(?P<name>[A-Za-z_]\w*)")
_TEST_ATTRIBUTE = re.compile(r"#\[\s*(?:\w+::)*test\b")


@dataclass(frozen=True)
class Function:
    """One function with a body; lines count from 1, both ends included."""

    name: str
    first_line: int
    last_line: int
    is_test: bool

    @property
    def lines(self) -> int:
        return self.last_line - self.first_line + 1


@functools.cache
def mask(source: str) -> str:
    """The source with comments and literals blanked out; every character keeps its line and column."""
    pieces: list[str] = []
    position = 0
    while match := _TOKEN.search(source, position):
        end = _token_end(source, match)
        pieces.append(source[position : match.start()])
        pieces.append(re.sub(r"[^\n]", " ", source[match.start() : end]))
        position = end
    pieces.append(source[position:])
    return "".join(pieces)


def _token_end(source: str, match: re.Match[str]) -> int:
    if match["block"]:
        return _block_comment_end(source, match.end())
    if match["raw"]:
        closing = '"' + match["hashes"]
        found = source.find(closing, match.end())
        return len(source) if found < 0 else found + len(closing)
    return match.end()


def _block_comment_end(source: str, position: int) -> int:
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(source, position):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(source)


def line_of(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def functions(source: str) -> list[Function]:
    """Every function with a body, nested ones and those inside macros included."""
    masked = mask(source)
    found = []
    for match in _FUNCTION.finditer(masked):
        body = _body_start(masked, match.end())
        if body is None:
            continue
        first = line_of(masked, match.start())
        last = line_of(masked, closing_brace(masked, body))
        found.append(Function(match["name"], first, last, _has_test_attribute(masked, match.start())))
    return found


def _body_start(masked: str, position: int) -> int | None:
    """Index of the `{` that opens the body; None for a declaration that ends in `;`."""
    depth = 0
    for index in range(position, len(masked)):
        character = masked[index]
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif depth == 0 and character == "{":
            return index
        elif depth == 0 and character == ";":
            return None
    return None


def closing_brace(masked: str, opening: int) -> int:
    """Index of the `}` that closes the `{` at `opening`."""
    depth = 0
    for index in range(opening, len(masked)):
        if masked[index] == "{":
            depth += 1
        elif masked[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    return len(masked) - 1


_TEST_ONLY = re.compile(r"#!?\[\s*cfg\((?:test|all\(\s*test\b[^\]]*)\)\s*\]")
_ATTRIBUTE = re.compile(r"\s*#\[[^\]]*\]")
_ITEM = re.compile(r"\s*(?:pub\b(?:\s*\([^)]*\))?\s*)?(?P<keyword>\w+)(?:\s+(?P<name>\w+))?")


def without_tests(source: str) -> tuple[str, list[str]]:
    """The masked source with all that stands behind `cfg(test)` blanked out, and the names of the files that do (`mod x;`)."""
    code, files = mask(source), []
    for first, end, name in test_spans(code):
        code = code[:first] + re.sub(r"[^\n]", " ", code[first:end]) + code[end:]
        files += [name] if name else []
    return code, files


def test_spans(masked: str) -> list[tuple[int, int, str | None]]:
    """Where each item behind `cfg(test)` begins and ends, and its name where it is a file of its own."""
    spans: list[tuple[int, int, str | None]] = []
    for match in _TEST_ONLY.finditer(masked):
        if spans and match.start() < spans[-1][1]:
            continue
        if match.group().startswith("#!"):
            return [(0, len(masked), None)]
        position = match.end()
        while attribute := _ATTRIBUTE.match(masked, position):
            position = attribute.end()
        item = _ITEM.match(masked, position)
        keyword = item["keyword"] if item else ""
        end = _item_end(masked, position, keyword)
        is_file = item is not None and keyword == "mod" and masked[end - 1] == ";"
        spans.append((match.start(), end, item["name"] if item and is_file else None))
    return spans


def test_files(source: str, features: set[str]) -> list[str]:
    """The names of the modules that a file declares (`mod x;`) behind `cfg(test)` or behind one of those features."""
    gates = "|".join(rf'feature = "{re.escape(feature)}"' for feature in sorted(features))
    gated = re.findall(rf"#\[cfg\((?:{gates})\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", source)
    return gated + without_tests(source)[1]


def lines_without_tests(source: str) -> int:
    masked = mask(source)
    tests = sum(line_of(masked, end - 1) - line_of(masked, first) + 1 for first, end, _ in test_spans(masked))
    return len(source.splitlines()) - tests


def module_of(root: str, path: str) -> tuple[str, ...]:
    """Where in its crate the module of a file is; `root` is the folder of the crate's `lib.rs`."""
    parts = path.removeprefix(root + "/").removesuffix(".rs").split("/")
    return tuple(parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts)


def module_file(root: str, path: str, name: str) -> str:
    """The file of the module that the file at `path` declares as `mod name;`."""
    return "/".join((root, *module_of(root, path), name)) + ".rs"


def _item_end(masked: str, position: int, keyword: str) -> int:
    """The index after an item: its `;`, its body, or for a field, a variant or an arm the `,` that ends it."""
    depth = 0
    whole = keyword in ("fn", "mod", "struct", "enum", "impl", "trait", "unsafe", "async", "extern", "const", "static")
    for index in range(position, len(masked)):
        character = masked[index]
        if character == "{" and depth == 0 and keyword != "use":
            return closing_brace(masked, index) + 1
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return index
        elif depth == 0 and (character == ";" or (character == "," and not whole)):
            return index + 1
    return len(masked)


def _has_test_attribute(masked: str, position: int) -> bool:
    """Whether the attributes right before a function mark it as a test."""
    before = masked[:position]
    start = max(before.rfind(mark) for mark in ("}", "{", ";"))
    return _TEST_ATTRIBUTE.search(before[start + 1 :]) is not None


@dataclass(frozen=True)
class Unsafe:
    """One use of the keyword; `what` is `block`, `impl`, `fn`, `trait`, `extern` or `attribute`."""

    what: str
    line: int


def unsafe_uses(source: str) -> list[Unsafe]:
    masked = mask(source)
    found = []
    for match in re.finditer(r"\bunsafe\b", masked):
        rest = masked[match.end() : match.end() + 200].lstrip()
        what = _unsafe_kind(rest)
        if what is not None:
            found.append(Unsafe(what, line_of(masked, match.start())))
    return found


def _unsafe_kind(rest: str) -> str | None:
    if rest.startswith("{"):
        return "block"
    if rest.startswith("("):
        return "attribute"
    # Literals are blanked out, so the ABI between `extern` and `fn` is white space here.
    if re.match(r"(extern\s+)?fn\s*\(", rest):
        return None  # The type of a pointer, not code.
    for what, pattern in (
        ("fn", r"(extern\s+)?fn\s+\w"),
        ("impl", r"impl\b"),
        ("trait", r"trait\b"),
        ("extern", r"extern\b"),
    ):
        if re.match(pattern, rest):
            return what
    return "block"


def has_safety_argument(source: str, use: Unsafe) -> bool:
    """Whether the comment above (or on) an unsafe line argues for its safety: `SAFETY:` or a `# Safety` section.

    A private function, and a block of foreign declarations, only state what holds for them: any comment will do.
    """
    line = use.line
    lines = source.split("\n")
    index = line - 1
    if "SAFETY:" in lines[index]:
        return True
    masked_lines = mask(source).split("\n")
    any_comment = use.what == "extern" or (use.what == "fn" and not re.match(r"\s*pub\b", lines[index]))
    index -= 1
    while index >= 0 and _belongs_to_statement(lines[index], masked_lines[index]):
        if re.search(r"//.*SAFETY:|#\s+Safety\b", lines[index]) or (any_comment and "//" in lines[index]):
            return True
        index -= 1
    return False


def _belongs_to_statement(line: str, masked: str) -> bool:
    """Comments, attributes and the unfinished head of a statement; a blank line or the end of another statement is not."""
    code = masked.strip()
    if not line.strip():
        return False
    return not code or code.startswith("#[") or code[-1] not in ";{},"
