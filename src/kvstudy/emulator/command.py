"""`kvstudy emulate serve MODEL …`: an engine's command line, with an emulated engine behind it.

The command line and YAML are those of `trtllm-serve serve`, or with `--dialect vllm` or
`--dialect sglang` those of `vllm serve` and of `python -m sglang.launch_server`. On top come

--time-scale X     study seconds per wall second
--workload FILE    Parquet of schema `base.tables.EXPECTED`: true output lengths by prompt digest
--emulate JSON     version, pause, step_time, admission_lag_steps, api_key_env, and the wall-clock
                   patience: grace_s, opening_s, gather_s
--faults JSON      for tests only, see `kvstudy.emulator.faults`
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstudy.base.errors import KvstudyError, UsageError
from kvstudy.emulator import arguments, faults, sglang, trtllm, vllm
from kvstudy.emulator.settings import Dialect, Launch
from kvstudy.sim.model import Policy

_ENGINES = {Dialect.TRTLLM: trtllm, Dialect.VLLM: vllm, Dialect.SGLANG: sglang}


def main(argv: list[str]) -> int:
    """Serve until told to end; the exit code (0 after SIGTERM, 64 for a bad command line)."""
    try:
        launch, wanted_faults = parse(argv[1:] if argv[:1] == ["serve"] else argv)
        from kvstudy.emulator import server  # noqa: PLC0415  a bad command line needs no server

        return server.run(launch, wanted_faults)
    except KvstudyError as error:
        print(f"kvstudy emulate: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


def parse(argv: list[str]) -> tuple[Launch, faults.Faults]:
    """The launch and the faults of a command line. Raises UsageError."""
    dialect = _dialect(argv)
    engine = _ENGINES[dialect]
    parser = arguments.Parser("kvstudy emulate serve")
    engine.add_options(parser)
    arguments.add_emulator_options(parser)
    known = parser.parse_args(argv)
    emulation = arguments.emulation(known)
    wanted_faults = faults.read(known.faults)
    key = os.environ.get(emulation.api_key_env) or None
    server = engine.resolve(known, model_config=_model_config(_folder(known)), key=key)
    if wanted_faults.policy is not None:
        server = trtllm.with_policy(server, wanted_faults.policy)
    if wanted_faults.pool_tokens is not None:
        server = replace(server, pool_tokens=wanted_faults.pool_tokens)
    if server.pool_blocks <= (server.policy is Policy.VLLM_RECOMPUTE):
        raise UsageError("the KV pool holds no block; raise max_tokens or the memory fraction")
    return Launch(server, emulation), wanted_faults


def _dialect(argv: list[str]) -> Dialect:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dialect", default=str(Dialect.TRTLLM))
    name = parser.parse_known_args(argv)[0].dialect
    try:
        return Dialect(name)
    except ValueError:
        raise UsageError(f"--dialect: expected one of {[str(d) for d in Dialect]}") from None


def _model_config(model: str) -> dict[str, Any]:
    """MODEL/config.json, or nothing where there is none."""
    path = Path(model) / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: not a readable model configuration ({error})") from None
    return config if isinstance(config, dict) else {}


def _folder(known: argparse.Namespace) -> str:
    named = getattr(known, "model_path", None) or known.model
    return "" if named is None else str(named)
