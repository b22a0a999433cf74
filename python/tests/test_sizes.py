"""One grammar of sizes, wherever a size is given: options of a store, URLs, command lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

import tensorlease as tl
from tensorlease import cli, host
from tensorlease._core import parse_bytes
from tensorlease.doctor import examination

MEANT = {
    "4096": 4096,
    "64 bytes": 64,
    "64B": 64,
    "1 KiB": 1 << 10,
    "64MiB": 64 << 20,
    "64 mib": 64 << 20,
    " 1.5 GB ": 1_500_000_000,
    "0.5GiB": 1 << 29,
    "2kb": 2000,
}
REFUSED = ["MiB", "1.", "1.2.3GB", "64 mb of it", "1Mi", "1e9", "0x10", "-1", "99999999999TiB", "٦٤"]


class _ReadAs(BaseException):
    """Ends a command when its arguments have been read."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes


def by_the_module(text: str) -> int:
    return parse_bytes(text, "max_bytes")


def by_serve(text: str) -> int:
    return _by_command(["serve", f"--max-bytes={text}"])


def by_doctor(text: str) -> int:
    return _by_command(["doctor", "embedded://", f"--max-bytes={text}"])


def _by_command(arguments: list[str]) -> int:
    try:
        cli.main(arguments)
    except _ReadAs as read:
        return read.max_bytes
    raise AssertionError("the command went on without a size")


def by_an_option(text: str) -> None:
    tl.open("embedded://?capacity=1MiB", max_bytes=text).close()


def by_a_url(text: str) -> None:
    tl.open(f"embedded://?capacity={quote(text)}", max_bytes="1MiB").close()


def by_a_mooncake_url(text: str) -> None:
    tl.open(f"mooncake://127.0.0.1:1?connect_timeout=0.1&local_buffer={quote(text)}").close()


READERS: list[Callable[[str], int]] = [by_the_module, by_serve, by_doctor]
OPENERS: list[Callable[[str], None]] = [by_an_option, by_a_url, by_a_mooncake_url]


@pytest.fixture(autouse=True)
def commands_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: Any, max_bytes: int, **__: Any) -> None:
        raise _ReadAs(max_bytes)

    monkeypatch.setattr(host, "serve", end)
    monkeypatch.setattr(examination, "examine", end)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", MEANT)
def test_a_size_means_the_same_wherever_it_is_given(read: Callable[[str], int], text: str) -> None:
    assert read(text) == MEANT[text]


@pytest.mark.parametrize("open_with", OPENERS)
@pytest.mark.parametrize("text", MEANT)
def test_a_store_takes_what_a_command_takes(open_with: Callable[[str], None], text: str) -> None:
    try:
        open_with(text)
    except tl.Error as error:
        # Too small or too large for what it is for, perhaps, but read.
        assert "is no size" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("give", [*READERS, *OPENERS])
@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_size_is_refused_wherever_it_is_given(
    give: Callable[[str], object], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((tl.ConfigError, SystemExit)) as refused:
        give(text)
    assert "is no size" in f"{refused.value}{capsys.readouterr().err}"
