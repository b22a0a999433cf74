"""What trials do, each in a process of its own: ``python -m tensorlease.doctor.looks LOOK ARGUMENTS FD SECONDS`` writes its answer to FD."""

import contextlib
import ctypes
import errno
import importlib
import ipaddress
import json
import os
import secrets
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorlease as tl
from tensorlease.mooncake_master import MASTER_MAGIC, NO_SUCH_FUNCTION

Values = dict[str, Any]

#: Its number is the same on every architecture that this package has wheels for.
_IO_URING_SETUP = 425
_IO_URING_PARAMS_BYTES = 120
#: What an object of a trial holds: long enough to be a real transfer.
TRIAL_OBJECT_BYTES = 1 << 20
TRIAL_MAX_BYTES = "16MiB"
#: The least with which a store opens that stages nothing: it pins 4 MiB at most.
SMALL_MAX_BYTES = "4MiB"
#: For the trial's put, get and remove, each.
CALL_SECONDS = 8.0
_METRICS_BYTES_MAX = 1 << 20
_METRICS_LINES = 100
#: `ibv_device_attr` up to `max_mr`: firmware, two identifiers, `max_mr_size` in bytes, and what is not asked for here.
_DEVICE_ATTR = struct.Struct("=64s8s8sQQIIIiiIiiiii")
_DEVICE_ATTR_BYTES = 1024


def pinned() -> Values:
    """A small store that pins its memory. `refused` is the error's name where the kernel gives no ring, `error` what the store said else."""
    refused, said = _ring_refused(), None
    if refused is None:
        try:
            opened("embedded://?registration=pinned")
        except tl.Error as error:
            said = str(error)
    return {"refused": refused, "error": said}


def _ring_refused() -> str | None:
    """Asks the kernel itself, whose error says more than that of a library."""
    parameters = ctypes.create_string_buffer(_IO_URING_PARAMS_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_IO_URING_SETUP, 1, parameters)
    if descriptor < 0:
        return errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
    os.close(descriptor)
    return None


def opened(url: str) -> Values:
    tl.open(url, max_bytes=SMALL_MAX_BYTES, readers=1).close()
    return {}


def stored(url: str) -> Values:
    """Puts, reads and removes one object under a namespace of its own. `failed` names the step that failed and why."""
    store = tl.open(url, max_bytes=TRIAL_MAX_BYTES, readers=1, namespace=f"tensorlease-doctor-{secrets.token_hex(8)}/")
    payload = secrets.token_bytes(TRIAL_OBJECT_BYTES)
    try:
        step = "put"
        made = store.put(["trial"], [payload], timeout=CALL_SECONDS)
        step = "get"
        (found,) = store.get(["trial"], [None], [None], made, timeout=CALL_SECONDS)
        if found != payload:
            return {"failed": step, "error": "Difference", "message": "the bytes that came back are other ones"}
        step = "remove"
        store.remove(["trial"], timeout=CALL_SECONDS)
    except tl.Error as error:
        if not isinstance(error, tl.Timeout):
            # Of a put that timed out nobody knows what is stored; what is, may be evicted.
            with contextlib.suppress(tl.Error):
                store.remove(["trial"], timeout=CALL_SECONDS)
            store.close()
        return {"failed": step, "error": type(error).__name__, "message": str(error)}
    store.close()
    return {"failed": None}


def wheel() -> Values:
    """Loads Mooncake's module, and tries the libraries it needs one by one: an import names only the first that is missing."""
    found: Values = {"absent": False, "error": None, "missing": []}
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            found["missing"].append(name)
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        found |= {"absent": isinstance(error, ModuleNotFoundError), "error": str(error)}
    return found


#: What the wheel's module is linked against, and the Debian package of each.
LIBRARIES = {
    "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
}


def master(host: str, port: int, seconds: float) -> Values:
    """Asks for a function that no master has. `error` is None where it answered, `listens` None where nobody knows, as behind a firewall."""
    deadline = time.monotonic() + seconds
    last: Values = {"error": "the name has no address", "listens": None}
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"error": f"{host}: {error}", "listens": None}
    for family, kind, protocol, _, address in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        with socket.socket(family, kind, protocol) as stream:
            stream.settimeout(left)
            listens: bool | None = None
            try:
                stream.connect(address)
                listens = True
                stream.sendall(NO_SUCH_FUNCTION)
                if stream.recv(1) == MASTER_MAGIC:
                    return {"error": None, "listens": True}
                why = "what listens there is no Mooncake master"
            except TimeoutError:
                why = f"no answer within {seconds:g} s"
                # Nothing on the way to this machine itself swallows a connection, but a listener that takes no more of them.
                listens = listens or ipaddress.ip_address(address[0]).is_loopback or None
            except ConnectionRefusedError as error:
                why, listens = str(error), False
            except OSError as error:
                why = str(error)
            # A name may have several addresses: one where something listens says more than one that refuses.
            if listens or not last["listens"]:
                last = {"error": why, "listens": listens}
    return last


def metrics(host: str, port: int) -> Values:
    """What the master shows for Prometheus, cut to what is in its first MiB and fits into a pipe: lines with bytes only."""
    import urllib.request

    # The master is no site for a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host}:{port}/metrics", timeout=CALL_SECONDS) as answer:
        lines = answer.read(_METRICS_BYTES_MAX).decode(errors="replace").splitlines()
    told = [line for line in lines if line.startswith("master_") and "_bytes " in line]
    return {"text": "\n".join(told[:_METRICS_LINES])}


def verbs() -> Values:
    """Per device that libibverbs can open, its limits. `error` is set where the library itself is missing."""
    try:
        library = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    except OSError as error:
        return {"error": str(error), "devices": {}}
    pointer, count = ctypes.c_void_p, ctypes.c_int(0)
    library.ibv_get_device_list.restype = ctypes.POINTER(pointer)
    library.ibv_get_device_name.restype = ctypes.c_char_p
    library.ibv_open_device.restype = pointer
    listed = library.ibv_get_device_list(ctypes.byref(count))
    devices = {}
    for index in range(count.value):
        device = pointer(listed[index])
        name = library.ibv_get_device_name(device).decode()
        context = library.ibv_open_device(device)
        if not context:
            devices[name] = {"error": os.strerror(ctypes.get_errno())}
            continue
        attributes = ctypes.create_string_buffer(_DEVICE_ATTR_BYTES)
        refused = library.ibv_query_device(pointer(context), attributes)
        numbers = _DEVICE_ATTR.unpack_from(attributes)
        library.ibv_close_device(pointer(context))
        limits = {"max_mr_bytes": numbers[3], "max_mr": numbers[-1]}
        devices[name] = {"error": os.strerror(refused)} if refused else limits
    return {"error": None, "devices": devices}


#: Comes before the answer: on a busy machine Python itself may take longer to start than a look may.
BEGUN = b"\n"

_LOOKS: dict[str, Callable[..., Values]] = {
    look.__name__: look for look in (pinned, opened, stored, wheel, master, metrics, verbs)
}


def main(look: str, arguments: str, descriptor: str, seconds: str) -> None:
    """Answers, and ends without waiting for whatever a library still runs."""
    answers = int(descriptor)
    os.write(answers, BEGUN)
    # Also where nobody is left to end this process. The kernel does it: Python's lock may be held for ever.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    # Loading torch takes longer than every look, and no look needs it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    try:
        answer: Values = {"values": _LOOKS[look](**json.loads(arguments))}
    except (tl.Error, OSError) as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    os.write(answers, json.dumps(answer).encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
