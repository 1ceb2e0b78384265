"""Printed documents are what the code says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvstudy.report.docs import PAGES


@pytest.mark.parametrize(("name", "make"), PAGES.items(), ids=list(PAGES))
def test_the_document_is_what_the_code_prints(
    root: Path, name: str, make: Callable[[], str]
) -> None:
    assert (root / "docs" / name).read_text(encoding="utf-8") == make(), "run `make docs`"
