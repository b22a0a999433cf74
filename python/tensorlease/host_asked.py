"""Which daemon a command is about: what the user, the environment, or nobody says."""

from __future__ import annotations

import os

from tensorlease._core import host_socket
from tensorlease.errors import ConfigError
from tensorlease.host import HOST_URL, starts_daemon
from tensorlease.store import URL_VARIABLE


def asked_place(socket: str | None, command: str) -> str:
    """The socket of the daemon that `command` is about.

    :param socket: where the user says; None: that of the store that ``tensorlease.open()`` opens here
    :raises ConfigError: the environment names a store that has no daemon of this host. Another daemon than that of the user's job is not what was meant
    """
    url = os.environ.get(URL_VARIABLE)
    if socket is not None or not url or starts_daemon(url):
        return host_socket(socket)
    path = url.removeprefix(HOST_URL).partition("?")[0].rstrip("/")
    if not url.startswith(HOST_URL) or not path:
        raise ConfigError(
            f"{URL_VARIABLE} is {url!r}, which names no daemon of this host; say --socket PATH, or unset the variable for this user's own "
            f"daemon: env -u {URL_VARIABLE} {command}"
        )
    try:
        return host_socket(path)
    except ConfigError as error:
        raise ConfigError(f"{URL_VARIABLE} is {url!r}: {error}") from error
