"""Predict one cell in virtual time: the same requests, no sockets."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base import tables
from kvstudy.base.files import write_json
from kvstudy.sim.of_cell import Prediction
from kvstudy.steps.run import run
from kvstudy.workload.requests import LENGTHS, in_order


def main(argv: list[str] | None = None) -> None:
    """Write the predicted request and iteration rows and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads)
    parser.add_argument("--workload", required=True, type=Path)
    parser.add_argument("--requests", required=True, type=Path)
    parser.add_argument("--iterations", required=True, type=Path)
    parser.add_argument("--run", required=True, type=Path)
    args = parser.parse_args(argv)
    spec = args.spec
    phases = in_order(args.workload, spec["workload"], spec["repeat"], LENGTHS)
    prediction = Prediction(spec, phases["measured"])
    tables.write(args.requests, prediction.request_rows(), tables.CLIENT_REQUESTS)
    tables.write(args.iterations, prediction.iterations, tables.CELL_ITERATIONS)
    write_json(args.run, {"cell_id": spec["cell_id"], "totals": prediction.totals})


if __name__ == "__main__":
    run(main)
