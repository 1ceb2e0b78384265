"""Look inside one engine's verified image: versions, and the defaults that decide hypotheses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base.files import read_json, write_json
from kvstudy.pins.probe import probe_engine
from kvstudy.pins.spec import EngineSpec
from kvstudy.steps.run import run


def main(argv: list[str] | None = None) -> None:
    """Write what the probe found; raises PinError for a version that is not the pinned one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads)
    parser.add_argument("--image-lock", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args(argv)
    write_json(args.out, probe_engine(EngineSpec.of(args.spec), read_json(args.image_lock)))


if __name__ == "__main__":
    run(main)
