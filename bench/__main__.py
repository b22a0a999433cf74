"""`python -m bench`: the benchmarks and the demo."""

from __future__ import annotations

import sys

from bench.command import main

if __name__ == "__main__":
    sys.exit(main())
