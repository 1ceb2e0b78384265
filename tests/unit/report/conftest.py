"""A small study taken through the report's three steps once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rendering import Rendered, render
from synthetic import Tables, small_study


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The small study as if measured."""
    return render(small_study("measured"), tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The small study, emulated."""
    return render(small_study("emulated"), tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def render_changed(tmp_path: Path) -> Callable[[Tables], Rendered]:
    """Render a study of one's own, without figures."""
    return lambda tables: render(tables, tmp_path, figures=False)
