"""Verify the model: every file at its pinned commit."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base.files import write_json
from kvstudy.pins.model import verify_model
from kvstudy.pins.spec import cache_folder
from kvstudy.steps.run import run


def main(argv: list[str] | None = None) -> None:
    """Write what was verified; raises PinError for a file that is not what the pin says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads)
    parser.add_argument("--cache", type=Path, help="manifests and locks; default: KVSTUDY_CACHE")
    parser.add_argument("--full", action="store_true", help="hash every file again")
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(argv)
    write_json(args.out, verify_model(args.spec, cache_folder(args.cache), full=args.full))


if __name__ == "__main__":
    run(main)
