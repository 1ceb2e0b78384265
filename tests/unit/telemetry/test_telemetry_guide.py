"""One source of knowledge: collectors' hints and the guide say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvstudy.telemetry import knowledge
from kvstudy.telemetry.guide import render_guide
from kvstudy.telemetry.signs import Nature


def test_the_guide_on_disk_is_the_one_that_is_printed(root: Path) -> None:
    """Print it again with: python -m kvstudy.telemetry.guide > docs/observing-kv-pressure.md."""
    page = (root / "docs" / "observing-kv-pressure.md").read_text(encoding="utf-8")

    assert page == render_guide()


def test_the_guide_answers_the_issues_third_question() -> None:
    page = render_guide()

    for word in (
        "enable_iter_perf_stats: true",
        "iter_stats_max_iterations",
        "request_stats_max_iterations",
        "return_perf_metrics",
        "/prometheus/metrics",
        "numPausedRequests",
        "1.2.x",
        "1.3.0rc",
        "use_kv_cache_manager_v2",
        "vllm:num_preemptions_total",
        "sglang:num_retracted_requests_total",
    ):
        assert word in page


@pytest.mark.parametrize(
    ("adapter", "version", "versions"),
    [
        ("trtllm", "1.2.1", "1.2.x"),
        ("trtllm", "1.3.0rc22", "1.3.0rc"),
        ("trtllm", "1.3.0", "1.3.0rc"),
        ("trtllm", "1.4.0rc1", "1.4 (candidates)"),
        ("vllm", "0.33.0", "0.32, 0.33"),
        ("sglang", "0.5.23", "0.5.23"),
    ],
)
def test_each_version_has_its_entry(adapter: str, version: str, versions: str) -> None:
    entry = knowledge.entry_for(adapter, version)

    assert entry is not None
    assert entry.versions == versions
    assert knowledge.switch_for(adapter, version) == entry.switch


def test_an_unknown_engine_has_no_hint() -> None:
    assert knowledge.switch_for("nonesuch", "1") == ""


def test_the_yaml_of_every_entry_parses_and_switches_statistics_on() -> None:
    documents = [
        yaml.safe_load(entry.settings) for entry in knowledge.ENTRIES if entry.language == "yaml"
    ]

    assert len(documents) == 3
    assert all(document["enable_iter_perf_stats"] is True for document in documents)
    assert all(document["return_perf_metrics"] is False for document in documents)


def test_every_nature_is_explained() -> None:
    page = render_guide()

    assert all(f"| {nature} |" in page for nature in Nature)


def test_table_cells_do_not_break_their_tables() -> None:
    for line in render_guide().split("\n"):
        if line.startswith("|") and not line.startswith("|---"):
            assert line.endswith("|")
            assert line.count("|") in (4, 7)
