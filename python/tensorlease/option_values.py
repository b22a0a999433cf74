"""What options of a command take: sizes, numbers, names, lists of them."""

import argparse
from collections.abc import Callable
from typing import TypeVar

from tensorlease._core import parse_bytes

Value = TypeVar("Value")


def checked(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """argparse hides the text of a ValueError and shows that of an ArgumentTypeError."""

    def parse_checked(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_checked


def list_of(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Values between commas, each once."""
    return lambda text: [parse(part.strip()) for part in dict.fromkeys(text.split(","))]


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number of at least `least`, and at most `most`."""
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse_whole(text: str) -> int:
        if not text.isdigit() or int(text) < least or (most is not None and most < int(text)):
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number {allowed}")
        return int(text)

    return parse_whole


def one_of(names: tuple[str, ...], kind: str) -> Callable[[str], str]:
    """One of `names`; the error calls it a `kind`."""

    def parse_name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is no {kind}; the {kind}s are {', '.join(names)}")
        return text

    return parse_name


def size_bytes(text: str) -> int:
    """A size of at least one byte. A ValueError says what is allowed."""
    size = parse_bytes(text)
    if size < 1:
        raise ValueError(f"{text!r} is no size; it must be at least one byte")
    return size


size = checked(size_bytes)
