"""Processes that this one has started."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

END_SECONDS = 5.0


def end_process(process: subprocess.Popen[Any], seconds: float = END_SECONDS) -> None:
    """Ends it in order, or by force after so many seconds. Idempotent."""
    if process.poll() is not None:
        return
    # A stopped process takes no SIGTERM before it goes on.
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
