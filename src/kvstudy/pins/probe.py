"""The probe rule."""

from __future__ import annotations

from kvstudy.base.errors import PinError
from kvstudy.pins.spec import Document, EngineSpec, emulated


def probe_engine(spec: EngineSpec, image: Document) -> Document:
    """Stub until the measured part is in."""
    if spec.emulated:
        return emulated(engine=spec.engine)
    raise PinError("not yet")
