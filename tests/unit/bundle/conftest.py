"""The constructed study and its bundle, for every test of this folder."""

from __future__ import annotations

from bundle_made import bundle, made

__all__ = ["bundle", "made"]
