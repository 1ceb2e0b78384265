"""`kvstudy import`: results from elsewhere as a side of comparison.

A bundle is verified first and then unpacked to results/imported/NAME. With --map, raw results of
other clients are read instead: rows per request of the kind the issue's bundle holds,
`vllm bench serve --save-detailed`, aiperf records, or anything that a mapping file describes.
What the files do not say is null. With --published, the published numbers are judged on them.
Exit codes: 0 imported, 2 the bundle is not sound (nothing is imported), 64 usage.
"""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any

from kvstudy.base.errors import EXIT_INVALID, EXIT_OK, UsageError
from kvstudy.bundle.bring import bring, place_for
from kvstudy.bundle.foreign import Foreign, import_foreign
from kvstudy.bundle.mapping import cell_of, read_mapping
from kvstudy.bundle.ready import READY
from kvstudy.bundle.verify import verify
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json, table
from kvstudy.commands.verify import as_json, show
from kvstudy.stats.verdict import exit_code

_EPILOG = """examples:
  kvstudy import study.zip --as before
  kvstudy import raw --map mapping.yaml --as issue --published report/published/issue-16827.yaml
  kvstudy import . --map vllm-bench --as vllm --cell vb.json=W.c32.vllm-0.32.0.base.r1
  kvstudy import --show-map issue-rows > mapping.yaml     a ready mapping to edit

then: kvstudy compare measured before"""


def main(argv: list[str]) -> int:
    """Bring a bundle or foreign files in."""
    args = _parser().parse_args(argv)
    if args.show_map is not None:
        out(_ready(args.show_map).rstrip("\n"))
        return EXIT_OK
    if args.source is None or args.name is None:
        raise UsageError("expected SOURCE and --as NAME; see kvstudy import --help")
    place = place_for(args.results, args.name)
    if args.map is None:
        return _bundle(args, place)
    return _foreign(args, place)


def _parser() -> Parser:
    parser = Parser(
        prog="kvstudy import",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="?", type=Path, help="bundle; with --map the raw folder")
    parser.add_argument("--as", dest="name", metavar="NAME", help="name of the side")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--map", metavar="NAME|FILE", help=f"{', '.join(READY)}, or a file")
    parser.add_argument("--cell", action="append", default=[], metavar="FILE=CELL_ID")
    parser.add_argument("--published", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="count the texts again")
    parser.add_argument("--verdict", action="store_true", help="exit code by the verdicts: 0, 1, 2")
    parser.add_argument("--show-map", metavar="NAME", help="print a ready mapping")
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def _ready(name: str) -> str:
    if name not in READY:
        close = difflib.get_close_matches(name, READY, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(READY)}"
        raise UsageError(f"--show-map {name}: no such mapping; {hint}")
    return READY[name]


def _bundle(args: argparse.Namespace, place: Path) -> int:
    report = verify(
        args.source, tokenizer=args.tokenizer, step=note if not args.json else lambda _text: None
    )
    if not report.sound:
        if args.json:
            out_json({**as_json(report), "imported": None, "exit_code": EXIT_INVALID})
        else:
            show(report)
            note("nothing was imported")
        return EXIT_INVALID
    origin = bring(report, place)
    if args.json:
        out_json({**as_json(report), "imported": str(place), "origin": origin, "exit_code": 0})
    else:
        out(f"{place}: study {origin['study']} ({origin['backend']}), verified")
        note(f"compare it: kvstudy compare {origin['backend']} {place.name}")
    return EXIT_OK


def _foreign(args: argparse.Namespace, place: Path) -> int:
    mapping, folder = read_mapping(args.map)
    cells = [*mapping.cells, *(cell_of(text) for text in args.cell)]
    base = args.source if args.source.is_dir() else args.source.parent
    published = args.published or [folder / name for name in mapping.published]
    found = import_foreign(
        base,
        mapping.model_copy(update={"cells": cells}),
        place,
        published=published,
        tokenizer=args.tokenizer,
    )
    code = exit_code(found.verdicts) if args.verdict else EXIT_OK
    if args.json:
        out_json(_document(found, code))
    else:
        _print(found)
    return code


def _document(found: Foreign, code: int) -> dict[str, Any]:
    return {
        "imported": str(found.place),
        "cells": found.cells,
        "verdicts": found.verdicts,
        "exit_code": code,
    }


def _print(found: Foreign) -> None:
    head = ["cell", "valid", "requests", "completed", "output_tok_per_s", "ttft_p50_ms",
            "tpot_p50_ms", "tpot_p99_ms", "e2e_p99_s"]  # fmt: skip
    rows = [
        [
            row["cell_id"],
            "yes" if row["valid"] else ",".join(row["reasons"]),
            *(_number(row[name]) for name in head[2:]),
        ]
        for row in found.cells
    ]
    table(head, rows)
    if found.verdicts:
        out("")
        table(
            ["claim", "published", "from the rows", "unit", "verdict"],
            [
                [v["claim_id"], _number(v["published"]), _number(v["observed"]), v["unit"],
                 v["verdict"]]
                for v in found.verdicts
            ],
        )  # fmt: skip
    note(f"imported to {found.place}; compare it: kvstudy compare measured {found.place.name}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"
