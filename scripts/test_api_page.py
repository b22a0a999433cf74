"""The API page has what users call, with defaults, arguments and errors, and says when it is out of date."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import api_page

MODULE = '''
SECONDS = 10.0

def move(self, key, *, timeout=SECONDS, mode="fast"):
    """Moves ``key``, as :func:`tensorlease.open` does.

    A second
    paragraph.

    :param key: what to move
        and where
    :raises Timeout, Closed: in time
    """
'''


def rendered(source: str) -> list[str]:
    module = ast.parse(source)
    function = module.body[-1]
    assert isinstance(function, ast.FunctionDef)
    return list(api_page._function("store.", function, module, level=3))


def test_a_function_is_a_heading_its_paragraphs_and_one_list() -> None:
    assert rendered(MODULE) == [
        '### `store.move(key, *, timeout=10.0, mode="fast")`',
        "Moves `key`, as `tensorlease.open` does.",
        "A second paragraph.",
        "- `key`: what to move and where\n- raises `Timeout`, `Closed`: in time",
    ]


def test_the_page_has_every_public_method_and_error() -> None:
    text = api_page.page()
    store = next(
        node for node in api_page._parsed("store.py").body if isinstance(node, ast.ClassDef) and node.name == "Store"
    )
    for node in store.body:
        if isinstance(node, api_page.Function) and not node.name.startswith("_"):
            assert f"`store.{node.name}" in text or f"`{node.name}` for `" in text, node.name
    exported = (api_page.PACKAGE / "__init__.py").read_text(encoding="utf-8")
    for node in api_page._parsed("errors.py").body:
        if isinstance(node, ast.ClassDef) and f'"{node.name}"' in exported:
            assert f"`{node.name}`" in text, node.name


def test_a_page_that_is_out_of_date_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api_page, "PAGE", tmp_path / "api.md")
    assert api_page.main(["--check"]) == 1
    assert "run scripts/api_page.py" in capsys.readouterr().out
    assert api_page.main([]) == 0
    assert api_page.main(["--check"]) == 0
    (tmp_path / "api.md").write_text("other", encoding="utf-8")
    assert api_page.main(["--check"]) == 1
