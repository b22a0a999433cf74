"""Each check of the tidy script finds the breach it is for, and lets clean code pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rust_source
import tidy

INVARIANTS = "# A\n\n## Invariants\n\n" + "".join(
    f"{number}. Something holds. Checked by `blocks_never_overlap`.\n" for number in range(1, tidy.INVARIANTS + 1)
)
TEST = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn blocks_never_overlap() {\n        assert!(true);\n    }\n}\n"


def tree_of(root: Path, files: dict[str, str]) -> tidy.Tree:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return tidy.Tree(root, sorted(files))


def breaches(root: Path, check: Callable[[tidy.Tree], None], files: dict[str, str]) -> list[str]:
    tree = tree_of(root, files)
    check(tree)
    return tree.breaches


def long_rust_function(lines: int) -> str:
    return "fn long() {\n" + "    step(); // a brace } in a comment\n" * (lines - 2) + "}\n"


def long_python_function(lines: int) -> str:
    return "def long():\n" + "    step()\n" * (lines - 1)


@pytest.mark.parametrize(("path", "make"), [("a/x.rs", long_rust_function), ("a/x.py", long_python_function)])
def test_a_function_may_have_70_lines_and_no_more(tmp_path: Path, path: str, make: Callable[[int], str]) -> None:
    assert breaches(tmp_path, tidy.check_lengths, {path: make(70)}) == []
    found = breaches(tmp_path, tidy.check_lengths, {path: make(71)})
    assert found == [f"{path}:1: `long` has 71 lines; at most 70: split it"]


def test_a_file_may_have_1000_lines_and_no_more(tmp_path: Path) -> None:
    assert breaches(tmp_path, tidy.check_lengths, {"x.rs": "//\n" * 1000}) == []
    assert len(breaches(tmp_path, tidy.check_lengths, {"x.rs": "//\n" * 1001})) == 1


def test_the_wheel_has_so_many_lines_of_python_and_no_more(tmp_path: Path) -> None:
    half = tidy.WHEEL_LINES_MAX // 2
    files = {"python/tensorlease/a.py": "#\n" * half, "python/tensorlease/b/c.py": "#\n" * half, "bench/d.py": "#\n"}
    assert breaches(tmp_path, tidy.check_wheel, files) == []
    files["python/tensorlease/e.py"] = "#\n"
    assert len(breaches(tmp_path, tidy.check_wheel, files)) == 1


def test_the_command_has_so_many_options_and_no_more(tmp_path: Path) -> None:
    def added(count: int) -> dict[str, str]:
        lines = [f'parser.add_argument("--option-{chr(ord("a") + index % 26)}")\n' for index in range(count)]
        return {
            "python/tensorlease/cli.py": "import argparse\n" + "".join(lines),
            "python/tensorlease/a.py": 'x = "--x"\n',
        }

    assert breaches(tmp_path, tidy.check_wheel, added(tidy.WHEEL_OPTIONS_MAX)) == []
    assert len(breaches(tmp_path, tidy.check_wheel, added(tidy.WHEEL_OPTIONS_MAX + 1))) == 1


def test_unsafe_outside_the_listed_files_is_found(tmp_path: Path) -> None:
    code = "// SAFETY: checked above.\nlet x = unsafe { read(p) };\n"
    assert breaches(tmp_path, tidy.check_unsafe, {"crates/memory/src/copy.rs": code}) == []
    found = breaches(tmp_path, tidy.check_unsafe, {"crates/client/src/store.rs": code})
    assert found == ["crates/client/src/store.rs:2: `unsafe` outside the files listed in scripts/tidy.py"]


@pytest.mark.parametrize(
    "code",
    [
        "let a = 1;\nlet x = unsafe { read(p) };\n",
        "// SAFETY: an argument too far away.\nlet a = 1;\nlet x =\n    unsafe { read(p) };\n",
        "unsafe impl Send for X {}\n",
        "/// Reads.\npub unsafe fn read(p: *const u8) {}\n",
        "// SAFETY: another one.\n\nunsafe { read(p) };\n",
        'unsafe extern "C" fn on_fork() {}\n',
    ],
)
def test_unsafe_without_an_argument_is_found(tmp_path: Path, code: str) -> None:
    assert len(breaches(tmp_path, tidy.check_unsafe, {"crates/memory/src/copy.rs": code})) == 1


@pytest.mark.parametrize(
    "code",
    [
        "let a = 1;\n// SAFETY: in bounds.\nlet x =\n    unsafe { read(p) };\n",
        "// SAFETY: raw memory, owned by one record.\n#[allow(dead_code)]\nunsafe impl Send for X {}\n",
        "/// Reads.\n/// # Safety\n/// `p` is valid.\n#[inline]\npub unsafe fn read(p: *const u8) {}\n",
        '/// Called by the system with a live pointer.\nunsafe extern "C" fn on_fork(p: *mut u8) {}\n',
        'type Deleter = unsafe extern "C" fn(*mut u8);\n',
        '// the word unsafe in a comment\nlet text = "unsafe { }";\n',
        "match x {\n    // SAFETY: in bounds.\n    1 => unsafe { read(p) },\n    _ => 0,\n}\n",
    ],
)
def test_argued_unsafe_and_the_mere_word_pass(tmp_path: Path, code: str) -> None:
    assert breaches(tmp_path, tidy.check_unsafe, {"crates/memory/src/copy.rs": code}) == []


@pytest.mark.parametrize(
    "path", ["crates/arena/src/util.rs", "python/tensorlease/helpers.py", "crates/common/src/lib.rs"]
)
def test_a_name_that_says_nothing_is_found(tmp_path: Path, path: str) -> None:
    assert len(breaches(tmp_path, tidy.check_names, {path: "", "crates/arena/src/block.rs": ""})) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("crates/arena/src/block.rs", "use tensorlease_memory::Lease;\n"),
        ("crates/engine/src/tag.rs", "fn f(store: &tensorlease::Store) {}\n"),
        ("crates/memory/Cargo.toml", "[dev-dependencies]\ntensorlease-engine.workspace = true\n"),
        ("crates/engine/Cargo.toml", '[dependencies]\ntensorlease = { path = "../client" }\n'),
    ],
)
def test_a_lower_crate_that_names_a_higher_one_is_found(tmp_path: Path, path: str, text: str) -> None:
    assert len(breaches(tmp_path, tidy.check_layers, {path: text})) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("crates/engine/src/tag.rs", "use tensorlease_memory::Lease;\nuse tensorlease_arena as arena;\n"),
        ("crates/engine/src/tag.rs", "//! What the client, `tensorlease::Store`, compares.\n"),
        ("crates/engine/Cargo.toml", 'name = "tensorlease-engine"\ntensorlease-arena.workspace = true\n'),
        ("crates/client/src/store.rs", "use tensorlease_engine::Engine;\n"),
    ],
)
def test_a_higher_crate_may_name_a_lower_one(tmp_path: Path, path: str, text: str) -> None:
    assert breaches(tmp_path, tidy.check_layers, {path: text}) == []


@pytest.mark.parametrize("word", tidy.BANNED_WORDS)
def test_work_left_for_later_is_found(tmp_path: Path, word: str) -> None:
    assert len(breaches(tmp_path, tidy.check_words, {"x.rs": f"fn f() {{ {word} }}\n"})) == 1
    assert breaches(tmp_path, tidy.check_words, {"x.rs": "fn f() {}\n"}) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    files = {
        "README.md": "[a](docs/a.md) [b](docs/a.md#one-two) [c](https://example.org) `[d](no.md)` [e](#top)\n# Top\n",
        "docs/a.md": "# A\n## One, two\n[up](../README.md)\n",
    }
    assert breaches(tmp_path, tidy.check_links, files) == []
    files["docs/a.md"] += "[gone](b.md)\n[gone](../README.md#bottom)\n"
    found = breaches(tmp_path, tidy.check_links, files)
    assert [line.split(":")[:2] for line in found] == [["docs/a.md", "4"], ["docs/a.md", "5"]]


@pytest.mark.parametrize("path", tidy.TABLES_OF_TESTS)
def test_a_test_that_a_table_names_must_exist(tmp_path: Path, path: str) -> None:
    table = "| what | tests |\n| --- | --- |\n| `not_a_test` | `crates/arena/src/x.rs::blocks_never_overlap` |\n"
    files = {path: table, "crates/arena/src/x.rs": TEST}
    assert breaches(tmp_path, tidy.check_named_tests, files) == []
    files[path] = table + "| more | `blocks_always_overlap` |\n"
    found = breaches(tmp_path, tidy.check_named_tests, files)
    assert found == [f"{path}:4: names the test `blocks_always_overlap`, which does not exist"]


def test_a_function_that_is_no_test_does_not_count_as_one(tmp_path: Path) -> None:
    table = "| what | tests |\n| --- | --- |\n| a | `blocks_never_overlap` |\n"
    files = {"docs/requirements.md": table, "crates/arena/src/x.rs": "fn blocks_never_overlap() {}\n"}
    assert len(breaches(tmp_path, tidy.check_named_tests, files)) == 1


def test_each_invariant_names_a_test_that_exists(tmp_path: Path) -> None:
    files = {"ARCHITECTURE.md": INVARIANTS, "crates/arena/src/x.rs": TEST}
    assert breaches(tmp_path, tidy.check_named_tests, files) == []
    files["ARCHITECTURE.md"] = INVARIANTS.replace(
        "3. Something holds. Checked by `blocks_never_overlap`.", "3. Something holds."
    )
    assert "invariant 3 names no test" in breaches(tmp_path, tidy.check_named_tests, files)[0]
    files["ARCHITECTURE.md"] = INVARIANTS.replace("`blocks_never_overlap`", "`gone`", 1)
    assert "names the test `gone`" in breaches(tmp_path, tidy.check_named_tests, files)[0]
    files["ARCHITECTURE.md"] = INVARIANTS.rsplit(f"{tidy.INVARIANTS}.", 1)[0]
    assert "want 1 to 9" in breaches(tmp_path, tidy.check_named_tests, files)[0]


def test_each_requirement_has_a_test(tmp_path: Path) -> None:
    rows = [f"| {name} | A promise. | `blocks_never_overlap` |\n" for name in tidy.REQUIREMENTS]
    table = "| # | promise | tests |\n| --- | --- | --- |\n"
    path = "docs/requirements.md"
    assert breaches(tmp_path, tidy.check_requirements, {path: table + "".join(rows)}) == []
    rows[3] = "| A4 | A promise. | |\n"
    del rows[1]
    found = breaches(tmp_path, tidy.check_requirements, {path: table + "".join(rows)})
    assert found == [f"{path}:5: A4 names no test", f"{path}:1: has no row for A2"]


def test_counters_and_their_document_agree(tmp_path: Path) -> None:
    source = 'counters! {\n    /// Keys.\n    read_keys,\n}\nfn f() { stats.push("arena_bytes", 1); [("plan_seconds", 1.0)]; }\n'
    document = "| `read_keys` | a |\n| `arena_bytes` | b |\n| `plan_seconds` | c |\n"
    files = {"crates/client/src/stats.rs": source, "docs/stats.md": document}
    assert breaches(tmp_path, tidy.check_counters, files) == []
    files["docs/stats.md"] = document.replace("read_keys", "wrote_keys")
    found = breaches(tmp_path, tidy.check_counters, files)
    assert (
        len(found) == 2
        and "`read_keys` is not explained" in found[0]
        and "`wrote_keys`, which is no counter" in found[1]
    )


def test_a_breach_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree_of(tmp_path, {"x.rs": "fn f() {}\n"})
    assert tidy.main([str(tmp_path)]) == 0
    tree_of(tmp_path, {"x.rs": long_rust_function(71)})
    assert tidy.main([str(tmp_path)]) == 1
    assert "x.rs:1: `long` has 71 lines" in capsys.readouterr().out


def test_masking_keeps_every_position() -> None:
    source = 'let a = "}{"; /* { /* nested */ } */ let b = \'{\'; let c = r#"" fn x() {"#; // {\nlet d: &\'static str = b"{";\n'
    masked = rust_source.mask(source)
    assert len(masked) == len(source)
    assert "{" not in masked and "}" not in masked
    assert masked.count("let") == 4 and "'static" in masked


def test_tests_inside_macros_are_found() -> None:
    source = "proptest! {\n    #[test]\n    fn frees_merge(x in 0..5u8) {\n    }\n}\n#[tokio::test]\nasync fn waits() {}\nfn plain() {}\n"
    assert [(function.name, function.is_test) for function in rust_source.functions(source)] == [
        ("frees_merge", True),
        ("waits", True),
        ("plain", False),
    ]
