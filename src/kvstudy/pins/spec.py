"""The slices that pin steps get, as frozen types, and the answers they share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstudy.base.errors import PinError
from kvstudy.study.model import TO_BE_PINNED, Image, Model

WHY_EMULATED = "the emulated backend runs no image and reads no model"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine's pins: which image it runs in, or which command of the host."""

    backend: str
    engine: str
    adapter: str
    version: str
    image: Image | None
    command: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> EngineSpec:
        """From the JSON of `Study.pins_spec`."""
        image = values.get("image")
        return cls(
            backend=values["backend"],
            engine=values["engine"],
            adapter=values["adapter"],
            version=values["version"],
            image=Image.model_validate(image) if image is not None else None,
            command=tuple(values.get("command") or ()),
        )

    @property
    def emulated(self) -> bool:
        """Whether nothing is to be verified."""
        return self.backend == "emulated"

    @property
    def key(self) -> str:
        """Dotted path of the image in config.yaml."""
        return f"engines.{self.engine}.image"

    def pinned_image(self) -> Image:
        """The image, whose digest is known; raises PinError when it is to be pinned."""
        if self.image is None:
            raise PinError(f"engines.{self.engine}: has no image; it runs a command of the host")
        if self.image.digest == TO_BE_PINNED:
            raise PinError(
                f"engine {self.engine}: {self.key}.digest is {TO_BE_PINNED!r}. Run "
                f"`kvstudy pin {self.engine}` on a machine that reaches the registry; it resolves "
                f"{self.image.uri} and writes the digest into config.yaml"
            )
        return self.image


def model_of(values: Mapping[str, Any]) -> Model:
    """The model of the JSON of `Study.model_spec`; raises PinError when it is to be pinned."""
    model = Model.model_validate(values["model"])
    if model.revision == TO_BE_PINNED:
        raise PinError(
            f"model {model.repo}: model.revision is {TO_BE_PINNED!r}. Run `kvstudy pin model` on a "
            "machine that reaches the hub; it writes the commit into config.yaml"
        )
    return model


def emulated(**names: str) -> Document:
    """The answer of every pin step on the emulated backend."""
    return {"backend": "emulated", "verified": False, "why": WHY_EMULATED, **names}


def cache_folder(given: Path | None) -> Path:
    """The shared cache: `given`, else KVSTUDY_CACHE, else kvstudy's folder in the user's cache.

    On a cluster set KVSTUDY_CACHE to a project folder: images are too large for most home quotas.
    """
    if given is not None:
        return given.expanduser().absolute()
    if named := os.environ.get("KVSTUDY_CACHE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvstudy"
