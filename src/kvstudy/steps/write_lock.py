"""Everything that was resolved, in one file that is enough to run again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base.files import read_json, write_json
from kvstudy.pins.lock import lock_of
from kvstudy.steps.run import run


def main(argv: list[str] | None = None) -> None:
    """Write the lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=json.loads, default={}, help="kept in the lock as it is")
    parser.add_argument("--image", nargs="*", default=[], type=Path)
    parser.add_argument("--probe", nargs="*", default=[], type=Path)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(argv)
    lock = lock_of(
        [read_json(path) for path in args.image],
        [read_json(path) for path in args.probe],
        read_json(args.model),
        args.spec,
    )
    write_json(args.out, lock)


if __name__ == "__main__":
    run(main)
