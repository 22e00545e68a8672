"""`python -m evalharness` is the `evalharness` command."""

from __future__ import annotations

import sys

from evalharness.cli import main

if __name__ == "__main__":
    sys.exit(main())
