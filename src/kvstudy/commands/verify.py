"""`kvstudy verify BUNDLE`: every file against its checksum, every table against its raw rows.

Exit codes: 0 the bundle is what it says, 2 something differs (named, one line each) or the file
is refused: not a zip, paths that climb, links, double names, sizes of a bomb. Nothing is written
outside a temporary folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kvstudy.base.errors import EXIT_INVALID, EXIT_OK
from kvstudy.bundle.unpack import Limits
from kvstudy.bundle.verify import Report, verify
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json

_EPILOG = """examples:
  kvstudy verify study.zip
  kvstudy verify study.zip --tokenizer models/llama     count tokens again, if it has no tokenizer
  kvstudy verify study.zip --without-simulation --json"""


def main(argv: list[str]) -> int:
    """Print what differs, or that nothing does."""
    args = _parser().parse_args(argv)
    report = verify(
        args.bundle,
        tokenizer=args.tokenizer,
        simulated=not args.without_simulation,
        limits=Limits(total_bytes=args.max_gib << 30),
        step=note if not args.json else lambda _text: None,
    )
    code = EXIT_OK if report.sound else EXIT_INVALID
    if args.json:
        out_json({**as_json(report), "exit_code": code})
    else:
        show(report)
    return code


def as_json(report: Report) -> dict[str, object]:
    """The report as one JSON object."""
    return {
        "bundle": str(report.bundle),
        "content_sha256": report.content_sha256,
        "study": report.about.get("study"),
        "backend": report.about.get("backend"),
        "commits": report.about.get("commits"),
        "files": report.files,
        "recomputed": report.recomputed,
        "differences": [{"name": d.name, "what": d.what} for d in report.differences],
        "remarks": report.remarks,
        "absent": report.about.get("absent"),
        "sound": report.sound,
    }


def show(report: Report) -> None:
    """The report in words."""
    for found in report.differences:
        out(f"differs: {found.name}: {found.what}")
    for remark in report.remarks:
        note(f"note: {remark}")
    count = len(report.differences)
    if count:
        out(f"{report.bundle}: {count} {'thing differs' if count == 1 else 'things differ'}")
        return
    out(f"{report.bundle}: {report.files} files match their checksums")
    out(f"recomputed from the raw rows and equal: {', '.join(report.recomputed)}")
    out(f"content: sha256 {report.content_sha256}")


def _parser() -> Parser:
    parser = Parser(
        prog="kvstudy verify",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="the model's tokenizer")
    parser.add_argument(
        "--without-simulation",
        action="store_true",
        help="leave out the hypotheses and the regime map, which are simulated again",
    )
    parser.add_argument("--max-gib", type=int, default=32, help="refuse more when unpacked")
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser
