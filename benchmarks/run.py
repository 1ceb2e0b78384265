"""All benchmarks, side by side in one run: `make bench`. Writes docs/benchmarks.md.

    python benchmarks/run.py [--skip simulator client peers]

Peers run where they are installed (`python -m benchmarks.peers.setup`); what is left out, and why,
is in the table. In the document only the text between the marks of a part that ran is replaced;
a part that has no marks there is printed and no more. Ten to twenty minutes with all peers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PARTS = ("simulator", "client", "peers")


def replaced(document: str, part: str, text: str) -> str:
    """The document with the text between a part's marks replaced; the same if it has none."""
    begin, end = f"<!-- begin: {part} -->", f"<!-- end: {part} -->"
    head, found, rest = document.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        return document
    return f"{head}{begin}\n\n{text.strip()}\n\n{end}{tail}"


def _output(argv: list[str]) -> str:
    """What a program prints; its messages go to the screen."""
    print(f"running {' '.join(argv)}", file=sys.stderr, flush=True)
    argv = [sys.executable, *argv]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _peers() -> str:
    with tempfile.TemporaryDirectory() as folder:
        results = str(Path(folder) / "peers.json")
        _output(["-m", "benchmarks.peers.run", "--out", results])
        return _output(["-m", "benchmarks.peers.table", results])


def measure(part: str) -> str:
    """The text of one part."""
    if part == "peers":
        return _peers()
    text = _output([f"benchmarks/{part}.py"])
    return f"```text\n{text}```" if part == "simulator" else text


def main() -> int:
    """Run the parts; one that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--skip", nargs="*", default=[], choices=PARTS)
    skip = parser.parse_args().skip
    failed = []
    for part in PARTS:
        if part in skip:
            continue
        try:
            text = measure(part)
        except subprocess.CalledProcessError as error:
            failed.append(part)
            print(f"{part}: failed with exit code {error.returncode}", file=sys.stderr)
            continue
        print(text)
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(replaced(document, part, text), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
