"""The argument parser of every subcommand."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from kvstudy.base.errors import EXIT_USAGE


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors exit with 64."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the problem, and exit."""
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")
