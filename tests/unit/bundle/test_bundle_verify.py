"""Whatever is not as it was published is named; what is sound passes."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundle_made import members, packed

from kvstudy.base.errors import DataError
from kvstudy.bundle.publish import CHECKSUMS
from kvstudy.bundle.verify import Report, verify

Files = dict[str, bytes]


def changed(content: bytes, change: Callable[[list[dict[str, object]]], object]) -> bytes:
    """A Parquet file after a change of its rows."""
    table = pq.read_table(pa.BufferReader(content))
    rows = table.to_pylist()
    change(rows)
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), buffer)
    return buffer.getvalue()


def forged(bundle: Path, tmp_path: Path, change: Callable[[Files], object]) -> Report:
    """The report on a bundle that was changed and got checksums that match again."""
    files = members(bundle)
    change(files)
    return verify(packed(tmp_path / "forged.zip", files, checksums=True))


def named(report: Report) -> set[str]:
    return {difference.name for difference in report.differences}


def test_a_sound_bundle_passes(bundle: Path) -> None:
    report = verify(bundle)
    assert report.sound
    assert report.recomputed == [
        "stats/contrasts.parquet",
        "stats/verdicts.parquet",
        "tables/cells.parquet",
        "tables/iterations.parquet",
        "tables/requests.parquet",
        "tables/runs.json",
        "cells/*/check.json",
    ]
    assert report.remarks == []


def test_one_flipped_bit_is_named(bundle: Path, tmp_path: Path, made: SimpleNamespace) -> None:
    name = f"cells/{made.study.cells[0].id}/requests.parquet"
    content = bytearray(bundle.read_bytes())
    with zipfile.ZipFile(bundle) as archive:
        start = archive.getinfo(name).header_offset + 30 + len(name)
    content[start + 400] ^= 1
    path = tmp_path / "flipped.zip"
    path.write_bytes(content)
    report = verify(path)
    assert name in named(report)
    assert any("not recomputed" in remark for remark in report.remarks)


def test_a_changed_a_missing_and_an_added_file_are_named(bundle: Path, tmp_path: Path) -> None:
    files = members(bundle)
    files["report/report.md"] += b"better numbers\n"
    del files["figures/effects.csv"]
    files["extra.txt"] = b"new"
    report = verify(packed(tmp_path / "a.zip", files, checksums=False))
    assert named(report) == {"report/report.md", "figures/effects.csv", "extra.txt"}


def test_a_forged_table_is_found_by_its_raw_rows(bundle: Path, tmp_path: Path) -> None:
    def change(files: Files) -> None:
        name = "tables/cells.parquet"
        files[name] = changed(files[name], lambda rows: rows[0].update(tpot_p99_ms=1.0))

    report = forged(bundle, tmp_path, change)
    (found,) = report.differences
    assert found.name == "tables/cells.parquet"
    assert found.what.startswith("tpot_p99_ms: 1.0 in the bundle, ")


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("tables/requests.parquet", "retokenized_tokens", 7),
        ("tables/requests.parquet", "ttft_ns", 7),
        ("stats/contrasts.parquet", "ratio_low", 0.5),
        ("stats/verdicts.parquet", "verdict", "reproduced"),
    ],
)
def test_any_forged_number_is_found(
    name: str, column: str, value: object, bundle: Path, tmp_path: Path
) -> None:
    def change(files: Files) -> None:
        files[name] = changed(files[name], lambda rows: rows[0].update({column: value}))

    report = forged(bundle, tmp_path, change)
    assert [d.name for d in report.differences if d.what.startswith(f"{column}: ")] == [name]


def test_forged_raw_rows_break_the_seal_of_the_attempt(
    bundle: Path, tmp_path: Path, made: SimpleNamespace
) -> None:
    name = f"cells/{made.study.cells[0].id}/requests.parquet"

    def change(files: Files) -> None:
        files[name] = changed(files[name], lambda rows: rows[0].update(end_ns=10**15))

    assert {name, "tables/requests.parquet", "tables/cells.parquet"} <= named(
        forged(bundle, tmp_path, change)
    )


def test_a_reason_that_was_taken_out_is_found(
    bundle: Path, tmp_path: Path, made: SimpleNamespace
) -> None:
    cell = made.study.cells[0].id

    def change(files: Files) -> None:
        for end in ("run.json", "check.json"):
            document = json.loads(files[f"cells/{cell}/{end}"])
            document["reasons"] = ["clock_jump"] if end == "run.json" else []
            files[f"cells/{cell}/{end}"] = json.dumps(document).encode()

    report = forged(bundle, tmp_path, change)
    (found,) = (d for d in report.differences if d.name == f"cells/{cell}/check.json")
    assert "its rows say clock_jump" in found.what


def test_malformed_contents_are_named_without_a_traceback(bundle: Path, tmp_path: Path) -> None:
    for name, content in (
        ("plan.json", b'{"cells": [{"cell_id": "../../../etc"}], "source": "emulated"}'),
        ("plan.json", b"[]"),
        ("study.json", b'{"config": {}}'),
        ("tables/cells.parquet", b"PAR1"),
        ("published/01-made.yaml", b"claims: ["),
    ):
        report = forged(bundle, tmp_path, lambda files, n=name, c=content: files.update({n: c}))
        assert report.differences[0].what.startswith("cannot be recomputed")


def test_broken_documents_are_refused(bundle: Path, tmp_path: Path) -> None:
    for name, content in (
        (CHECKSUMS, b"{"),
        (CHECKSUMS, b'{"format": "other", "files": {}}'),
        (CHECKSUMS, b'{"format": "kvstudy-bundle-1", "files": {"a": {"sha256": "zz"}}}'),
    ):
        files = {**members(bundle), name: content}
        with pytest.raises(DataError, match=CHECKSUMS):
            verify(packed(tmp_path / "a.zip", files, checksums=False))


def test_without_a_tokenizer_the_counts_are_said_to_be_trusted(
    bundle: Path, tmp_path: Path, made: SimpleNamespace
) -> None:
    def change(files: Files) -> None:
        del files["tokenizer/tokenizer.json"], files["tokenizer/tokenizer_config.json"]

    report = forged(bundle, tmp_path, change)
    assert report.sound
    assert any("counts were taken from the bundle" in remark for remark in report.remarks)
    again = verify(tmp_path / "forged.zip", tokenizer=made.results / "emulated" / "tokenizer")
    assert again.sound
    assert again.remarks == []


def test_the_wrong_tokenizer_is_not_taken(bundle: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "tokenizer"
    wrong.mkdir()
    (wrong / "tokenizer.json").write_text("{}", encoding="utf-8")
    report = verify(bundle, tokenizer=wrong)
    assert "not the tokenizer of this bundle" in report.differences[0].what


def test_other_code_is_said_before_anything_is_blamed(bundle: Path, tmp_path: Path) -> None:
    def change(files: Files) -> None:
        about = json.loads(files["bundle.json"])
        files["bundle.json"] = json.dumps({**about, "code": "0" * 16}).encode()

    report = forged(bundle, tmp_path, change)
    assert any("made by other code" in remark for remark in report.remarks)
