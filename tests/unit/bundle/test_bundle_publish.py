"""A bundle holds everything, describes itself, and is the same bytes for the same results."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bundle_made import members

from kvstudy.base.errors import DataError, UsageError
from kvstudy.bundle.contents import CELL_FILES
from kvstudy.bundle.crate import PROFILES, WORKFLOW
from kvstudy.bundle.publish import Published, publish
from kvstudy.bundle.scrub import Scrubber


def published(results: Path, out: Path, made: SimpleNamespace, **changes: Any) -> Published:
    settings: dict[str, Any] = {"checkout": made.checkout, "licence": "https://example.org/l"}
    return publish(results, out, scrubber=Scrubber({}), **{**settings, **changes})


@pytest.fixture
def copy(made: SimpleNamespace, tmp_path: Path) -> Path:
    """A copy of the results to change."""
    return Path(shutil.copytree(made.results / "emulated", tmp_path / "copy"))


def test_everything_that_a_reader_needs_is_there(bundle: Path, made: SimpleNamespace) -> None:
    names = set(members(bundle))
    cell = made.study.cells[0].id
    assert names >= {
        *(f"cells/{cell}/{name}" for name in CELL_FILES),
        f"cells/{cell}/telemetry.jsonl", f"cells/{cell}/server.log", f"cells/{cell}/extra.yaml",
        f"predicted/{cell}/requests.parquet", "report/index.html", "report/report.md",
        "tables/requests.parquet", "stats/verdicts.parquet", "figures/effects.svg",
        "figures/effects.csv", "pins/lock.json", "study.json", "launch_commands.json",
        "environment.json", "published/01-made.yaml", "workflow/Snakefile", "checksums.json",
        "ro-crate-metadata.json", "bundle.json", "README.md", "logs/build_tables.log",
        "tokenizer/tokenizer.json",
    }  # fmt: skip


def test_the_bundle_names_commit_dates_and_what_is_absent(bundle: Path) -> None:
    about = json.loads(members(bundle)["bundle.json"])
    assert about["commits"] == ["c0ffee" * 6]
    assert about["started_at"] == "2026-01-01T00:00:00+00:00"
    assert about["ended_at"] == "2026-01-02T00:00:08+00:00"
    assert any("stats/regimes.parquet" in line for line in about["absent"])


def test_the_same_results_give_the_same_bytes(
    copy: Path, bundle: Path, made: SimpleNamespace, tmp_path: Path
) -> None:
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    out = tmp_path / "again.zip"
    published(copy, out, made, licence="https://example.org/licence")
    assert out.read_bytes() == bundle.read_bytes()


def test_names_are_sorted_and_nothing_tells_the_day(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        infos = archive.infolist()
    assert [info.filename for info in infos] == sorted(info.filename for info in infos)
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {info.external_attr >> 16 for info in infos} == {0o100644}


def test_a_missing_required_file_is_named_and_no_bundle_appears(
    copy: Path, made: SimpleNamespace, tmp_path: Path
) -> None:
    (copy / "stats" / "verdicts.parquet").unlink()
    with pytest.raises(DataError, match=r"stats/verdicts\.parquet: no such file"):
        published(copy, tmp_path / "a.zip", made)
    assert not list(tmp_path.glob("*.zip*"))


def test_absent_optional_parts_are_stated(
    copy: Path, made: SimpleNamespace, tmp_path: Path
) -> None:
    cell = made.study.cells[0].id
    shutil.rmtree(copy / "figures")
    shutil.rmtree(copy / "store" / cell)
    absent = published(copy, tmp_path / "a.zip", made).absent
    assert any(line.startswith("figures/manifest.json") for line in absent)
    assert any(line.startswith(f"cells/{cell}/telemetry.jsonl") for line in absent)


def test_links_are_not_followed(copy: Path, made: SimpleNamespace, tmp_path: Path) -> None:
    outside = tmp_path / "outside.log"
    outside.write_text("private\n", encoding="utf-8")
    (copy / "logs" / "link.log").symlink_to(outside)
    made_of = published(copy, tmp_path / "a.zip", made)
    assert "logs/link.log" not in members(tmp_path / "a.zip")
    assert any(line.startswith("logs/link.log: a link") for line in made_of.absent)


def test_other_attempts_are_said(copy: Path, made: SimpleNamespace, tmp_path: Path) -> None:
    cell = made.study.cells[0].id
    (folder,) = (copy / "store" / cell).glob("*/attempt-1")
    shutil.copytree(folder, folder.with_name("attempt-2"))
    absent = published(copy, tmp_path / "a.zip", made).absent
    assert f"cells/{cell}: 1 other attempts stay in the store" in absent


@pytest.mark.parametrize("out", ["a.tar", "a"])
def test_the_name_must_be_of_a_zip(out: str, made: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.zip"):
        published(made.results / "emulated", tmp_path / out, made)


def test_a_wrong_checkout_is_named(made: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--checkout"):
        published(made.results / "emulated", tmp_path / "a.zip", made, checkout=tmp_path)


# ---- Workflow Run RO-Crate: what the profiles require ----------------------------------------


@pytest.fixture
def graph(bundle: Path) -> dict[str, dict[str, Any]]:
    """The crate's entities by id."""
    document = json.loads(members(bundle)["ro-crate-metadata.json"])
    assert document["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    entities = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(entities) == len(document["@graph"])
    return entities


def test_the_root_says_what_it_is(graph: dict[str, dict[str, Any]]) -> None:
    descriptor, root = graph["ro-crate-metadata.json"], graph["./"]
    assert descriptor["about"] == {"@id": "./"}
    assert {"@id": "https://w3id.org/ro/crate/1.1"} in descriptor["conformsTo"]
    assert [entry["@id"] for entry in root["conformsTo"]] == list(PROFILES)
    assert {"name", "description", "datePublished", "license"} <= root.keys()
    assert root["mainEntity"] == {"@id": WORKFLOW}
    assert graph[root["license"]["@id"]]["name"]


def test_the_run_uses_the_workflow_on_files_that_exist(
    graph: dict[str, dict[str, Any]], bundle: Path
) -> None:
    run, workflow = graph["#run"], graph[WORKFLOW]
    assert run["@type"] == "CreateAction"
    assert run["instrument"] == {"@id": WORKFLOW}
    assert {"File", "SoftwareSourceCode", "ComputationalWorkflow"} == set(workflow["@type"])
    assert graph[workflow["programmingLanguage"]["@id"]]["@type"] == "ComputerLanguage"
    names = set(members(bundle))
    parts = {entry["@id"] for entry in graph["./"]["hasPart"]}
    assert parts == names - {"checksums.json", "ro-crate-metadata.json"}
    for entry in (*run["object"], *run["result"]):
        assert entry["@id"] in parts
    assert {"@id": "study.json"} in run["object"]
    assert {"@id": "tables/cells.parquet"} in run["result"]


def test_every_reference_in_the_crate_leads_somewhere(graph: dict[str, dict[str, Any]]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, list):
            return [found for entry in value for found in references(entry)]
        return [value["@id"]] if isinstance(value, dict) else []

    for entity in graph.values():
        for key, value in entity.items():
            for target in references(value):
                outside = target.startswith(("https://w3id.org/ro/crate", "https://snakemake"))
                assert target in graph or outside, f"{entity['@id']}.{key} -> {target}"
