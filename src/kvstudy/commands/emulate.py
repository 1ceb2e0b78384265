"""`kvstudy emulate serve MODEL ...`: the engine emulator."""

from __future__ import annotations

from kvstudy.base.errors import UsageError
from kvstudy.emulator.command import main as serve


def main(argv: list[str]) -> int:
    """Pass the rest of the command line to the emulator, as the real engine's command takes it."""
    if not argv or argv[0] != "serve":
        raise UsageError("kvstudy emulate: expected `serve MODEL ...`; see `emulate serve --help`")
    return serve(argv[1:])
