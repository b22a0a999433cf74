"""`python -m tensorlease` is the command `tensorlease`."""

from __future__ import annotations

import sys

from tensorlease.cli import main

if __name__ == "__main__":
    sys.exit(main())
