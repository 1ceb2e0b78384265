"""The image rule."""

from __future__ import annotations

from pathlib import Path

from kvstudy.base.errors import PinError
from kvstudy.pins.spec import Document, EngineSpec, emulated


def verify_image(spec: EngineSpec, cache: Path, *, full: bool = False) -> Document:
    """Stub until the measured part is in."""
    if spec.emulated:
        return emulated(engine=spec.engine)
    spec.pinned_image()
    raise PinError("not yet")
