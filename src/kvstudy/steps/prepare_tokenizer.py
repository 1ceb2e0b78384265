"""Put the tokenizer in use into the results: the model's own, or the small one that is shipped."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from kvstudy.base.errors import DataError
from kvstudy.base.files import read_json, replacing, write_json
from kvstudy.steps.run import run
from kvstudy.workload.tokens import tokenizer_digest
from kvstudy.workload.train import SHIPPED

_NAMES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")


def main(argv: list[str] | None = None) -> None:
    """Copy the tokenizer's files and record their digest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads)
    parser.add_argument("--model-lock", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path, help="tokenizer.digest.json")
    args = parser.parse_args(argv)
    folder = args.out.parent
    source = SHIPPED
    if args.spec["backend"] == "measured":
        source = Path(read_json(args.model_lock)["path"])
    if not (source / "tokenizer.json").is_file():
        raise DataError(
            f"{source}: no tokenizer.json. The model's folder must hold its tokenizer; "
            "check model.repo and model.path in config.yaml"
        )
    for name in _NAMES:
        if (source / name).is_file():
            with replacing(folder / name) as temporary:
                shutil.copyfile(source / name, temporary)
    write_json(args.out, {"sha256": tokenizer_digest(folder), "backend": args.spec["backend"]})


if __name__ == "__main__":
    run(main)
