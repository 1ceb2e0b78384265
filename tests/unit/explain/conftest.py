"""Shared inputs of the explanation's tests: one fit, one set of hypotheses, one small map."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.explain.evidence import PublishedValue
from kvstudy.explain.hypotheses import explain
from kvstudy.explain.published import lengths_of, published_values
from kvstudy.explain.regimes import Grid, regimes
from kvstudy.study.parse import parse_config
from kvstudy.study.plan import Study

ROOT = Path(__file__).resolve().parents[3]
SMALL = Grid(
    pool_ratios=(0.5, 0.9, 1.0), output_shares=((1, 1), (0.1, 1)), concurrency=(16, 32), requests=64
)


@pytest.fixture(scope="session")
def config() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    return {**loaded, "backend": "emulated"}


@pytest.fixture(scope="session")
def study(config: dict[str, Any]) -> Study:
    return Study(parse_config(config))


@pytest.fixture(scope="session")
def published(config: dict[str, Any]) -> list[PublishedValue]:
    return published_values([ROOT / name for name in config["published"]])


@pytest.fixture(scope="session")
def hypothesis_rows(study: Study, published: list[PublishedValue]) -> list[dict[str, Any]]:
    return explain(study, [], published=published, lengths_of=lengths_of)


@pytest.fixture(scope="session")
def regime_rows(study: Study) -> list[dict[str, Any]]:
    return regimes(study, SMALL)


@pytest.fixture
def changed(config: dict[str, Any]) -> Callable[[Callable[[dict[str, Any]], object]], Study]:
    """Makes a study after a change of the configuration."""

    def make(change: Callable[[dict[str, Any]], object]) -> Study:
        document = copy.deepcopy(config)
        change(document)
        return Study(parse_config(document))

    return make
