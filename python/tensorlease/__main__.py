"""`python -m tensorlease` is the command `tensorlease`."""

import sys

from tensorlease.cli import main

if __name__ == "__main__":
    sys.exit(main())
