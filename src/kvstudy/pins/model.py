"""The model rule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvstudy.base.errors import PinError
from kvstudy.pins.spec import Document, emulated, model_of


def verify_model(spec: Mapping[str, Any], cache: Path, *, full: bool = False) -> Document:
    """Stub until the measured part is in."""
    if spec["backend"] == "emulated":
        return emulated(model=str(spec["model"]["repo"]))
    model_of(spec)
    raise PinError("not yet")
