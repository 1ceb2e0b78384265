"""The `kvstudy` command: one line per subcommand here, its code in `kvstudy.commands`.

Results go to stdout, progress and problems to stderr. Exit codes: 0 pass, 1 not reproduced,
2 invalid or not measured, 64 usage or configuration error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from kvstudy.base.errors import KvstudyError
from kvstudy.commands.parser import Parser

COMMANDS = {
    "plan": "cells, allocations and what would run",
    "pin": "fill in the pins that are to be pinned",
    "watch": "show a run as it goes",
    "report": "the verdicts, and an exit code for them",
    "trace": "where a number of the report comes from",
    "compare": "two results, cell by cell, with intervals",
    "audit": "is a result consistent with itself",
    "publish": "a result as one bundle",
    "verify": "hash and recompute a bundle",
    "import": "bring a bundle or foreign rows in as a comparison side",
    "advise": "which policy for a workload, and what to watch",
    "simulate": "run a simulation spec in virtual time",
    "calibrate": "fit the step-time constants",
    "load": "run only the client, against a server that is up",
    "emulate": "serve the engine emulator",
}

MODULES = {"import": "import_"}
"""Subcommands whose module cannot carry their name."""

_EPILOG = "Each subcommand has its own --help with examples. Guide: README.md"


def parser() -> argparse.ArgumentParser:
    """The top-level parser, with only the names of the subcommands."""
    lines = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    top = Parser(
        prog="kvstudy",
        description="Reproduce, explain and extend a study of LLM serving under KV-cache pressure.",
        epilog=f"subcommands:\n{lines}\n\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"kvstudy {_version()}")
    top.add_argument("--debug", action="store_true", help="show tracebacks")
    top.add_argument("command", choices=list(COMMANDS), metavar="subcommand")
    top.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    args = parser().parse_args(argv)
    debug = args.debug or bool(os.environ.get("KVSTUDY_DEBUG"))
    # Imported here, so that `kvstudy emulate` does not wait for pandas, nor `plan` for uvicorn.
    name = MODULES.get(args.command, args.command)
    command = importlib.import_module(f"kvstudy.commands.{name}")
    try:
        return int(command.main(args.rest))
    except KvstudyError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the command's one message
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201 - the command's one message
        return 130
    except BrokenPipeError:
        # The reader of a pipe has gone; what it did not want is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - slow, and rarely asked for

    return version("kvstudy")
