"""`kvstudy import`: bundles and foreign files become sides; the round trip says equal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstudy.base.errors import UsageError
from kvstudy.commands import audit, compare, import_, publish, verify

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from bundle_made import bundle, made, members, packed

__all__ = ["bundle", "made"]

VB = {
    "duration": 2.0, "input_lens": [4, 4], "output_lens": [3, 3], "start_times": [0.0, 0.5],
    "ttfts": [0.5, 0.5], "itls": [[0.1, 0.1], [0.2, 0.2]], "generated_texts": ["", ""],
    "errors": ["", ""],
}  # fmt: skip
"""Constructed, in the form of `vllm bench serve --save-detailed`."""


def test_publish_verify_import_compare_says_equal(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, root = str(tmp_path / "a.zip"), str(tmp_path / "results")
    here = ["--results", str(made.results), "--checkout", str(made.checkout)]
    assert publish.main(["--backend", "emulated", *here, "--out", out]) == 0
    assert verify.main([out]) == 0
    assert import_.main([out, "--as", "before", "--results", root]) == 0
    assert "verified" in capsys.readouterr().out
    ours = str(made.results / "emulated")
    assert compare.main([ours, "before", "--results", root, "--all-metrics"]) == 0
    assert "equal: every compared number is the same" in capsys.readouterr().out
    assert compare.main([ours, "before", "--results", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert audit.main(["before", "--results", root]) == 0
    place = tmp_path / "results" / "imported" / "before"
    assert json.loads((place / "import.json").read_text())["kind"] == "bundle"
    assert [p.name for p in place.parent.iterdir()] == ["before"]


def test_an_unsound_bundle_is_not_imported(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = members(bundle)
    files["tables/cells.parquet"] = files["tables/iterations.parquet"]
    bad = packed(tmp_path / "bad.zip", files, checksums=False)
    assert import_.main([str(bad), "--as", "bad", "--results", str(tmp_path / "r")]) == 2
    said = capsys.readouterr()
    assert "tables/cells.parquet" in said.out
    assert "nothing was imported" in said.err
    assert not (tmp_path / "r" / "imported" / "bad").exists()


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "measured", "x" * 81])
def test_names_that_cannot_be_taken(name: str, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--as"):
        import_.main([str(bundle), "--as", name, "--results", str(tmp_path)])


def test_a_taken_name_is_kept(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "imported" / "x").mkdir(parents=True)
    with pytest.raises(UsageError, match="exists; choose another name"):
        import_.main([str(bundle), "--as", "x", "--results", str(tmp_path)])


def test_foreign_results_and_a_comparison_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, root = tmp_path / "raw", str(tmp_path / "results")
    raw.mkdir()
    for name, factor in (("a.json", 1.0), ("b.json", 2.0)):
        rows = {**VB, "ttfts": [factor * t for t in VB["ttfts"]]}
        (raw / name).write_text(json.dumps(rows), encoding="utf-8")
    for side, file in (("one", "a.json"), ("two", "b.json")):
        cell = f"{file}=W.c2.vllm-0.32.0.base.r1"
        words = [str(raw), "--map", "vllm-bench", "--cell", cell, "--as", side, "--results", root]
        assert import_.main(words) == 0
        assert "W.c2.vllm-0.32.0.base.r1" in capsys.readouterr().out
    assert compare.main(["one", "two", "--results", root, "--json"]) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["ttft_p50_ms"]["ratio"] == 2.0
    assert rows["ttft_p50_ms"]["ratio_low"] is None
    assert audit.main(["one", "--results", root, "--json"]) == 0


def test_ready_mappings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_.main(["--show-map", "issue-rows"]) == 0
    assert "first_chunk_ns" in capsys.readouterr().out
    with pytest.raises(UsageError, match="did you mean 'aiperf'"):
        import_.main(["--show-map", "aipref"])


def test_source_and_name_are_needed() -> None:
    with pytest.raises(UsageError, match="expected SOURCE and --as NAME"):
        import_.main([])
