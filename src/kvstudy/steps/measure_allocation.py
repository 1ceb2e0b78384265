"""Measure one allocation: its cells in order, each with a fresh server, into the cell store."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kvstudy.cell.allocation import Allocation, Inputs
from kvstudy.steps.run import run


def main(argv: list[str] | None = None) -> None:
    """Run every cell that has no finished attempt, then write the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads)
    for name in ("workload", "tokenizer", "image", "probe", "model"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    for name in ("store", "progress", "manifest"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    args = parser.parse_args(argv)
    inputs = Inputs(
        workload=args.workload,
        tokenizer=args.tokenizer.parent,
        image=args.image,
        probe=args.probe,
        model=args.model,
        store=args.store,
        progress=args.progress,
    )
    allocation = Allocation(args.spec, inputs, say=lambda text: print(text, file=sys.stderr))  # noqa: T201
    allocation.run()
    allocation.write_manifest(args.manifest)


if __name__ == "__main__":
    run(main)
