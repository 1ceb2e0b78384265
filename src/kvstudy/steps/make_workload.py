"""Generate one workload's fixed request set, with its manifest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base import tables
from kvstudy.base.files import read_json, write_json
from kvstudy.steps.run import run
from kvstudy.workload.generate import generate, manifest
from kvstudy.workload.tokens import HubTokenizer


def main(argv: list[str] | None = None) -> None:
    """Write the workload's Parquet file and manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads)
    parser.add_argument("--tokenizer", required=True, type=Path, help="tokenizer.digest.json")
    parser.add_argument("--requests", required=True, type=Path)
    parser.add_argument("--manifest", required=True, type=Path)
    args = parser.parse_args(argv)
    digest = read_json(args.tokenizer)["sha256"]
    rows = generate(args.spec, HubTokenizer(args.tokenizer.parent))
    tables.write(args.requests, rows, tables.WORKLOAD)
    write_json(args.manifest, manifest(args.spec, rows, digest))


if __name__ == "__main__":
    run(main)
