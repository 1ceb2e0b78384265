"""Configuration documents to a checked `Config`; every problem is reported at once.

Problems are found in two passes: the shape (types, unknown keys, ranges) and, once the shape is
right, the sense (references, cycles, lengths against limits).
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ValidationError

from kvstudy.base.errors import ConfigError
from kvstudy.study.model import Config
from kvstudy.study.sense import problems_of

_EXPECTED = {
    "missing": "is required",
    "string_pattern_mismatch": "has the wrong form",
}


def parse_config(document: Mapping[str, Any], *, files: Iterable[Path | str] = ()) -> Config:
    """Check a configuration document.

    `files` are the YAML files it was read from: they are read again only to find keys that stand
    twice, which a YAML loader hides. Raises ConfigError with every problem found.
    """
    paths = [Path(file) for file in files]
    source = ", ".join(path.name for path in paths) or "config"
    problems = [line for path in paths for line in duplicate_keys(path)]
    config: Config | None = None
    try:
        config = Config.model_validate(dict(document))
    except ValidationError as error:
        problems += [_line(detail) for detail in error.errors(include_url=False)]
    if config is not None and not problems:
        problems = problems_of(config)
    if config is None or problems:
        raise ConfigError(problems, source=source)
    return config


def read_config(*files: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and check YAML files, later ones laid over earlier ones key by key."""
    merged: dict[str, Any] = {}
    for path in files:
        merged = merge(merged, _load(path))
    return parse_config(merge(merged, dict(overrides or {})), files=files)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` on `base`: mappings key by key, everything else replaced whole."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def _load(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(["no such file"], source=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"not valid YAML: {error}"], source=str(path)) from error
    if not isinstance(document, dict):
        raise ConfigError(["expected a mapping at the top"], source=str(path))
    return document


def duplicate_keys(path: Path) -> list[str]:
    """Dotted paths of mapping keys that stand twice in a YAML file."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, yaml.YAMLError):
        return []
    found: list[str] = []
    _walk(root, "", found)
    return found


def _walk(node: yaml.Node | None, at: str, found: list[str]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, f"{at}[{index}]", found)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[Hashable] = set()
    for key, value in node.value:
        here = f"{at}.{key.value}" if at else str(key.value)
        if key.value in seen:
            found.append(f"{here}: the key stands twice (line {key.start_mark.line + 1}); keep one")
        seen.add(key.value)
        _walk(value, here, found)


def _line(detail: Any) -> str:
    """One problem as `dotted.path: expectation, got value`."""
    parts = [p for p in detail["loc"] if p not in ("int", "float", "bool", "[key]")]
    path = _dotted(parts)
    kind = detail["type"]
    if kind == "extra_forbidden":
        hint = _closest(parts)
        return f"{path}: unknown key{f'; did you mean {hint!r}?' if hint else ''}"
    if kind == "missing":
        return f"{path}: required, but missing"
    value = detail.get("input")
    shown = repr(value) if not isinstance(value, dict | list) else f"a {type(value).__name__}"
    message = str(detail["msg"]).replace("Input should be", "expected")
    message = message.removeprefix("Value error, ")
    return f"{path}: {message}, got {shown}"


def _dotted(parts: list[Any]) -> str:
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif isinstance(part, str) and part and part[0].isupper() and part in _MODEL_NAMES:
            continue
        else:
            text += f".{part}" if text else str(part)
    return text


def _closest(parts: list[Any]) -> str | None:
    model: Any = Config
    for part in parts[:-1]:
        model = _step_into(model, part)
    if isinstance(model, type) and issubclass(model, BaseModel):
        close = difflib.get_close_matches(str(parts[-1]), model.model_fields, n=1)
        return close[0] if close else None
    return None


def _step_into(model: Any, part: Any) -> Any:
    """The type found below `part`; mappings and lists lead to their value's type."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        field = model.model_fields.get(str(part))
        return _unwrap(field.annotation) if field is not None else None
    return _unwrap(model)


def _unwrap(annotation: Any) -> Any:
    arguments = cast(tuple[Any, ...], getattr(annotation, "__args__", ()))
    for argument in reversed(arguments):
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            return argument
    return annotation


def _all_models(model: type[BaseModel]) -> set[str]:
    siblings: Sequence[type[BaseModel]] = model.__mro__[1].__subclasses__()
    return {sibling.__name__ for sibling in siblings}


_MODEL_NAMES = _all_models(Config)
