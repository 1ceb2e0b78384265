"""Our client as one process, as a cell runs it: rows and texts in Parquet. For `run.py`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pandas  # noqa: F401 - PyArrow imports it at the first table; start-up is not measured
from benchmarks import client

from kvstudy.base import tables
from kvstudy.base.clock import StudyClock
from kvstudy.client.model import Limits, Load, Planned, Target
from kvstudy.client.phase import run_phase


def main() -> None:
    """Run the load that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--raw", action="store_true", help="read sockets, make no rows")
    for name in ("--streams", "--requests", "--tokens"):
        parser.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    if args.raw:
        case = client.Case("raw", args.streams, args.requests, args.tokens)
        client.raw_reader(args.url, case)
        return
    planned = [
        Planned(str(key), [key] * 8, 8, args.tokens, args.tokens) for key in range(args.requests)
    ]
    target, load = Target(args.url, "scripted"), Load(args.streams)
    result = asyncio.run(run_phase(target, planned, load, Limits(), StudyClock(1.0, 0)))
    tables.write(args.out / "requests.parquet", result.rows, tables.CLIENT_REQUESTS)
    tables.write(args.out / "outputs.parquet", result.texts, tables.OUTPUTS)


if __name__ == "__main__":
    main()
