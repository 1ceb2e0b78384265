"""`python -m kvstudy`: the same as the `kvstudy` console script."""

from __future__ import annotations

import sys

from kvstudy.cli import main

if __name__ == "__main__":
    sys.exit(main())
