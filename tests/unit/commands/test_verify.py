"""`kvstudy verify`: 0 for a sound bundle, 2 with a name for any other."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvstudy.cli import parser
from kvstudy.commands.verify import main

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from bundle_made import bundle, made, members, packed

__all__ = ["bundle", "made"]


def test_a_sound_bundle(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bundle)]) == 0
    said = capsys.readouterr()
    assert "files match their checksums" in said.out
    assert "tables/cells.parquet" in said.out
    assert "recomputing every table" in said.err


def test_a_damaged_bundle(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = members(bundle)
    files["report/report.md"] = b"\x1b[31mbetter\n"
    bad = packed(tmp_path / "bad.zip", files, checksums=False)
    assert main([str(bad)]) == 2
    assert "differs: report/report.md: sha256" in capsys.readouterr().out
    assert main([str(bad), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [d["name"] for d in document["differences"]] == ["report/report.md"]
    assert document["exit_code"] == 2
    assert document["sound"] is False


def test_names_from_a_bundle_cannot_drive_the_terminal(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {**members(bundle), "x\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe": b""}
    main([str(packed(tmp_path / "odd.zip", files, checksums=False))])
    assert "\x1b" not in capsys.readouterr().out


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out
    assert parser().prog == "kvstudy"
