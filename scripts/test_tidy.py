"""Each check of the tidy script finds the breach it is for, and lets clean code pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import code_map
import module_graph
import rust_source
import tidy
from source_tree import Tree

INVARIANTS = "# A\n\n## Invariants\n\n" + "".join(
    f"{number}. Something holds. Checked by `blocks_never_overlap`.\n" for number in range(1, tidy.INVARIANTS + 1)
)
TEST = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn blocks_never_overlap() {\n        assert!(true);\n    }\n}\n"


def tree_of(root: Path, files: dict[str, str]) -> Tree:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Tree(root, sorted(files))


def breaches(root: Path, check: Callable[[Tree], None], files: dict[str, str]) -> list[str]:
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


def test_counters_agree_with_their_document_and_their_metrics(tmp_path: Path) -> None:
    source = 'counters! {\n    /// Keys.\n    read_keys,\n}\nfn f() { stats.push("arena_bytes", 1); [("plan_seconds", 1.0)]; }\n'
    document = "| `read_keys` | a |\n| `arena_bytes` | b |\n| `plan_seconds` | c |\n"
    metrics = (
        'HELD_NOW = {\n    "arena_bytes": "b",\n}\nGROWING = {\n    "read_keys": "a",\n    "plan_seconds": "c",\n}\n'
    )
    path = "python/tensorlease/metrics.py"
    files = {"crates/client/src/stats.rs": source, "docs/stats.md": document, path: metrics}
    assert breaches(tmp_path, tidy.check_counters, files) == []
    files["docs/stats.md"] = document.replace("read_keys", "wrote_keys")
    found = breaches(tmp_path, tidy.check_counters, files)
    assert (
        len(found) == 2
        and "`read_keys` is not explained" in found[0]
        and "`wrote_keys`, which is no counter" in found[1]
    )
    files["docs/stats.md"], files[path] = document, metrics.replace("arena_bytes", "slab_bytes")
    assert breaches(tmp_path, tidy.check_counters, files) == [
        f"{path}:1: the counter `arena_bytes` is not explained",
        f"{path}:1: explains `slab_bytes`, which is no counter of a store",
    ]


ROOT = "crates/arena/src"


def graph(root: Path, files: dict[str, str]) -> list[tuple[str, str]]:
    tree = tree_of(root, {f"{ROOT}/{path}": text for path, text in files.items()})
    return [
        (edge.path.removeprefix(ROOT + "/"), edge.target.removeprefix(ROOT + "/"))
        for edge in module_graph.edges_of(tree)
    ]


def test_a_circle_of_files_is_found_with_each_of_its_edges(tmp_path: Path) -> None:
    files = {
        f"{ROOT}/lib.rs": "mod a;\nmod b;\nmod c;\n",
        f"{ROOT}/a.rs": "use crate::b::B;\npub struct A(B);\n",
        f"{ROOT}/b.rs": "use crate::c;\npub struct B;\nfn f() {\n    c::g();\n}\n",
        f"{ROOT}/c.rs": "pub fn g() {}\n",
    }
    assert breaches(tmp_path, module_graph.check_circles, files) == []
    files[f"{ROOT}/c.rs"] = "use crate::a::A;\npub fn g() {}\nfn h(a: A) {}\n"
    assert breaches(tmp_path, module_graph.check_circles, files) == [
        f"{ROOT}/a.rs:1: names `B` of {ROOT}/b.rs: 3 files name each other in a circle",
        f"{ROOT}/b.rs:4: names `g` of {ROOT}/c.rs: 3 files name each other in a circle",
        f"{ROOT}/c.rs:1: names `A` of {ROOT}/a.rs: 3 files name each other in a circle",
    ]


def test_a_circle_may_stand_only_where_it_is_listed(tmp_path: Path) -> None:
    root = "crates/memory/src"
    files = {
        f"{root}/lib.rs": "mod books;\nmod slab;\nmod view;\n",
        f"{root}/books.rs": "use crate::slab::Hold;\npub struct Books;\n",
        f"{root}/slab.rs": "pub struct Hold(super::books::Books);\n",
        f"{root}/view.rs": "",
    }
    assert breaches(tmp_path, module_graph.check_circles, files) == []
    files[f"{root}/slab.rs"] = "pub struct Hold(crate::view::View);\n"
    files[f"{root}/view.rs"] = "pub struct View(crate::books::Books);\n"
    assert len(breaches(tmp_path, module_graph.check_circles, files)) == 3


@pytest.mark.parametrize(
    "use",
    [
        "use crate::Inner;\nfn f(x: Inner) {}\n",
        "use crate::{\n    outer::made,\n    outer::{Inner as I, self},\n};\nfn f(x: I) {}\n",
        "use crate::outer::*;\nfn f(x: Inner) {}\n",
        "use crate::outer;\nfn f(x: outer::Inner) {}\n",
        "fn f(x: super::outer::inner::Inner) {}\n",
        "fn f() {\n    use crate::outer::Inner;\n}\n",
        "mod inline {\n    fn f(x: super::super::outer::Inner) {}\n}\n",
        "fn f() {\n    crate::made!(1);\n}\n",
    ],
)
def test_a_re_export_is_resolved_to_the_file_that_defines(tmp_path: Path, use: str) -> None:
    files = {
        "lib.rs": "mod outer;\nmod user;\npub use outer::Inner;\npub(crate) use outer::made;\n",
        "outer.rs": "mod inner;\npub use inner::{Inner, made};\n",
        "outer/inner.rs": "pub struct Inner;\nmacro_rules! made { () => {} }\npub(crate) use made;\n",
        "user.rs": use,
    }
    assert graph(tmp_path, files) == [("user.rs", "outer/inner.rs")]


def test_a_file_that_only_declares_and_re_exports_names_nothing(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod outer;\n",
        "outer.rs": "mod inner;\npub(crate) use inner::Inner;\npub struct Outer;\n",
        "outer/inner.rs": "use super::Outer;\npub struct Inner(Outer);\n",
    }
    assert graph(tmp_path, files) == [("outer/inner.rs", "outer.rs")]
    files["outer.rs"] += "fn f(inner: Inner) {}\n"
    assert graph(tmp_path, files) == [("outer.rs", "outer/inner.rs"), ("outer/inner.rs", "outer.rs")]


def test_what_only_tests_and_comments_name_is_no_edge(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\n#[cfg(test)]\nmod rig;\n",
        "a.rs": "//! Like [`crate::b::B`].\npub struct A;\n"
        "#[cfg(all(test, not(loom)))]\nmod tests {\n    use crate::b::B;\n}\n"
        "#[cfg(test)]\nuse crate::b::{B, B as C};\n"
        "struct S {\n    #[cfg(test)]\n    b: crate::b::B,\n    c: u8,\n}\n",
        "b.rs": "use crate::a::A;\npub struct B(A);\n",
        "rig.rs": "use crate::b::B;\n",
        "rig/deep.rs": "use crate::a::A;\n",
    }
    assert graph(tmp_path, files) == [("b.rs", "a.rs")]


def test_a_macro_that_a_parent_defines_for_its_children_is_named(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;\n",
        "a.rs": "macro_rules! forward { () => {} }\nmod b;\n",
        "a/b.rs": "fn f() {\n    forward!();\n    println!();\n}\n",
    }
    assert graph(tmp_path, files) == [("a/b.rs", "a.rs")]


def test_a_call_of_a_method_that_another_file_adds_is_an_edge(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod core;\nmod costs;\nmod user;\n",
        "core.rs": "pub struct Core<T>(T);\nimpl<T> Core<T> {\n    pub fn new() {}\n}\n",
        "costs.rs": "use crate::core::Core;\nimpl<T: Copy> Core<T>\nwhere\n    T: Send,\n{\n"
        "    fn measured(&self) {}\n    fn new() {}\n}\n",
        "user.rs": "fn f(x: &X) {\n    x.measured();\n    x.new();\n    let measured = x.measured;\n}\n",
    }
    assert graph(tmp_path, files) == [("costs.rs", "core.rs"), ("user.rs", "costs.rs")]
    files["core.rs"] += "fn f<T>(core: Core<T>) {\n    Core::measured(&core);\n}\n"
    assert ("core.rs", "costs.rs") in graph(tmp_path, files)


def test_a_type_may_be_cut_into_files_below_its_own(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod job;\nmod user;\n",
        "job.rs": "mod ranges;\nmod settling;\npub struct Job;\nfn f(job: Job) {\n    job.cuts();\n}\n",
        "job/ranges.rs": "use super::Job;\nimpl Job {\n    pub fn cuts(&self) {\n        self.settle();\n    }\n}\n",
        "job/settling.rs": "use super::Job;\nimpl Job {\n    pub fn settle(&self) {\n        self.cuts();\n    }\n}\n",
        "user.rs": "fn f(x: &X) {\n    x.cuts();\n}\n",
    }
    assert graph(tmp_path, files) == [
        ("job/ranges.rs", "job.rs"),
        ("job/settling.rs", "job.rs"),
        ("user.rs", "job/ranges.rs"),
    ]


def test_a_circle_of_python_files_is_found_also_for_types_alone(tmp_path: Path) -> None:
    root = "python/tensorlease"
    files = {
        f"{root}/__init__.py": "from tensorlease.store import Store\nfrom . import errors\n",
        f"{root}/errors.py": "class Error(Exception): ...\n",
        f"{root}/watch.py": "import tensorlease as tl\ndef watch(store): raise tl.errors.Error\n",
        f"{root}/store.py": "from tensorlease import watch\nclass Store:\n    def f(self): watch.watch(self)\n",
    }
    assert breaches(tmp_path, module_graph.check_circles, files) == []
    files[f"{root}/watch.py"] += (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tensorlease import Store\n"
    )
    assert breaches(tmp_path, module_graph.check_circles, files) == [
        f"{root}/store.py:3: names `watch` of {root}/watch.py: 2 files name each other in a circle",
        f"{root}/watch.py:5: names `Store` of {root}/store.py: 2 files name each other in a circle",
    ]


CLIENT = "crates/client/src"
ROOMS = {
    f"{CLIENT}/read.rs": "pub fn get() {}\n",
    f"{CLIENT}/read/job.rs": "pub struct Job;\n",
    f"{CLIENT}/write.rs": "pub fn put() {}\n",
    f"{CLIENT}/write/plan.rs": "pub struct Plan;\n",
    f"{module_graph.REFERENCE}.rs": "pub fn get() {}\n",
    f"{CLIENT}/store.rs": "fn f() {\n    crate::read::get();\n    crate::write::put();\n}\n",
    f"{CLIENT}/lib.rs": "mod read;\nmod store;\nmod write;\n"
    f"mod {Path(module_graph.REFERENCE).name};\npub(crate) use write::put;\n",
}


@pytest.mark.parametrize("room", module_graph.FORBIDDEN_ROOMS)
@pytest.mark.parametrize("within", ["", "/job"])
def test_a_room_that_names_one_it_must_not_know_is_found(tmp_path: Path, room: str, within: str) -> None:
    assert breaches(tmp_path, module_graph.check_rooms, ROOMS) == []
    for other in module_graph.FORBIDDEN_ROOMS[room]:
        function = "put" if other.endswith("write") else "get"
        name = other.removeprefix(CLIENT + "/")
        code = f"fn f() {{\n    crate::{name}::{function}();\n}}\n"
        files = ROOMS | {f"{room}{within}.rs": code}
        if within:
            files[f"{room}.rs"] = ROOMS[f"{room}.rs"] + "mod job;\n"
        found = breaches(tmp_path, module_graph.check_rooms, files)
        assert found == [f"{room}{within}.rs:2: names `{function}` of {other}.rs, which {room} must not know"]


def test_a_room_is_named_through_a_re_export_too(tmp_path: Path) -> None:
    files = ROOMS | {f"{CLIENT}/read/job.rs": "use crate::put;\n", f"{CLIENT}/read.rs": "mod job;\n"}
    assert len(breaches(tmp_path, module_graph.check_rooms, files)) == 1


def test_a_rule_about_a_room_that_is_gone_is_found(tmp_path: Path) -> None:
    files = {path: text for path, text in ROOMS.items() if not path.startswith(module_graph.REFERENCE)}
    found = breaches(tmp_path, module_graph.check_rooms, files)
    assert found == [
        f"{CLIENT}/lib.rs:1: scripts/module_graph.py has a rule about {module_graph.REFERENCE}, which is not there"
    ]


@pytest.mark.parametrize(
    "file", ["read/job.rs", "read/job/ranges.rs", "read/land.rs", "read/execute.rs", "write/execute.rs"]
)
@pytest.mark.parametrize(
    "code",
    [
        "let loan = 1;",
        "fn f(x: &StagingLoan) {}",
        "// What pool=store asks for.",
        "self.unlent = true;",
        "Mode::RegisterPerCall",
        "options.batch_keys",
    ],
)
def test_the_hot_path_has_no_word_of_the_references_own_way(tmp_path: Path, file: str, code: str) -> None:
    clean = ROOMS | {f"{CLIENT}/{file}": "// A silent read of what is lendable elsewhere.\nlet blend = len;\n"}
    assert breaches(tmp_path, module_graph.check_rooms, clean) == []
    found = breaches(tmp_path, module_graph.check_rooms, ROOMS | {f"{CLIENT}/{file}": code + "\n"})
    assert len(found) == 1 and found[0].startswith(f"{CLIENT}/{file}:1: ")


def test_the_code_map_and_the_files_agree(tmp_path: Path) -> None:
    table = "# A\n\n## Code map\n\n### `crates/arena` - x\n\n| file | holds |\n| --- | --- |\n| `arena.rs`, `arena/` | `no.rs` |\n"
    python = "\n### `python`\n\n| file in `python/tensorlease` | holds |\n| --- | --- |\n| `store.py` | a |\n"
    files = {
        "ARCHITECTURE.md": table + python + "\n## Invariants\n\n| file | a |\n| `gone.rs` | b |\n",
        "crates/arena/src/lib.rs": "mod arena;\n",
        "crates/arena/src/arena.rs": "mod usage;\n#[cfg(test)]\nmod tests;\n",
        "crates/arena/src/arena/usage.rs": "",
        "crates/arena/src/arena/tests.rs": "mod deep;\n",
        "crates/arena/src/arena/tests/deep.rs": "",
        "python/tensorlease/store.py": "",
        "python/tensorlease/__init__.py": "",
    }
    assert breaches(tmp_path, code_map.check_code_map, files) == []
    files["ARCHITECTURE.md"] = table.replace("`arena/`", "`usage.rs`") + python
    files["python/tensorlease/cli.py"] = ""
    assert breaches(tmp_path, code_map.check_code_map, files) == [
        "ARCHITECTURE.md:9: the code map names `usage.rs`, which is not in crates/arena/src",
        "ARCHITECTURE.md:1: the code map has no row for crates/arena/src/arena/usage.rs",
        "ARCHITECTURE.md:1: the code map has no row for python/tensorlease/cli.py",
    ]


def test_lines_of_rust_are_counted_without_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "crates/engine/src/lib.rs": '#[cfg(feature = "conformance")]\npub mod conformance;\nmod decorators;\n#[cfg(test)]\nmod rig;\n',
        "crates/engine/src/conformance.rs": "pub fn check() {}\n" * 5,
        "crates/engine/src/conformance/reads.rs": "pub fn check() {}\n" * 5,
        "crates/engine/src/rig.rs": "fn rig() {}\n" * 5,
        "crates/engine/src/decorators.rs": "// One.\nfn two() {}\n" + TEST,
        "crates/engine/tests/all.rs": "fn all() {}\n" * 5,
        "python/src/lib.rs": "fn f() {}\n",
    }
    tree = tree_of(tmp_path, files)
    assert [tidy.rust_lines(tree, root) for root in ("crates/engine/src", "python/src")] == [5, 1]
    monkeypatch.setattr(tidy, "RUST_LINES_MAX", 6)
    assert breaches(tmp_path, tidy.check_rust_lines, files) == []
    monkeypatch.setattr(tidy, "RUST_LINES_MAX", 5)
    assert breaches(tmp_path, tidy.check_rust_lines, files) == [
        "crates:1: 6 lines of Rust without tests, python/src included; at most 5"
    ]


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
