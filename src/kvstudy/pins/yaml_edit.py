"""Change single values of a YAML file and leave every other byte as it is.

The document is read by ruamel.yaml for the places of its values; the text is changed only there,
then read again by ruamel's round-trip reader: what was meant, and nothing else, must differ.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode

from kvstudy.base.errors import ConfigError

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One value: replaced where the key stands, else added as the last key of its mapping."""

    path: Keys
    value: str


def apply_edits(text: str, edits: Sequence[Edit], source: str = "config.yaml") -> str:
    """The text with every edit applied, one after the other.

    Raises ConfigError for a path that cannot be followed, or when the result would not read back
    as meant.
    """
    before = _load(text, source)
    for edit in edits:
        text = _apply(text, edit, source)
        _set(before, edit)
    if _load(text, source) != before:
        raise ConfigError(
            ["the edited text does not read back as meant; edit by hand"], source=source
        )
    return text


def _apply(text: str, edit: Edit, source: str) -> str:
    node: Any = YAML(typ="rt").compose(io.StringIO(text))
    *parents, last = edit.path
    for index, key in enumerate(parents):
        found = _child(node, key)
        if found is None and index < len(parents) - 1:
            raise _problem(edit, "is declared in another file; edit that one", source)
        if found is None:
            return _add(text, node, key, f"{{{last}: {_scalar(edit.value)}}}", edit, source)
        node = found
    found = _child(node, last)
    if found is None:
        return _add(text, node, last, _scalar(edit.value), edit, source)
    if not isinstance(found, ScalarNode):
        raise _problem(edit, "is not a single value", source)
    start, end = found.start_mark.index, found.end_mark.index
    return text[:start] + _scalar(edit.value) + text[end:]


def _add(text: str, node: Any, key: str, value: str, edit: Edit, source: str) -> str:
    """Add a key at the end of a mapping, in the mapping's own style."""
    if not isinstance(node, MappingNode) or not node.value:
        raise _problem(edit, "its mapping is not there; add it by hand", source)
    if node.flow_style:
        end = _last_end(node)
        return f"{text[:end]}, {key}: {value}{text[end:]}"
    first_key = node.value[0][0]
    end = _last_end(node)
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * first_key.start_mark.column
    return f"{text[:line_end]}\n{indent}{key}: {value}{text[line_end:]}"


def _scalar(value: str) -> str:
    """A string as YAML text: quoted where it would read as a number or anything else."""
    return value if YAML(typ="safe").load(value) == value else json.dumps(value)


def _last_end(node: Any) -> int:
    """Where the last value of a mapping ends; a block mapping's own mark is behind its comments."""
    last = node.value[-1][1]
    if isinstance(last, MappingNode) and not last.flow_style and last.value:
        return _last_end(last)
    end: int = last.end_mark.index
    return end


def _child(node: Any, key: str) -> Any:
    if isinstance(node, MappingNode):
        for name, value in node.value:
            if name.value == key:
                return value
    return None


def _set(document: Any, edit: Edit) -> None:
    for key in edit.path[:-1]:
        document = document.setdefault(key, {})
    document[edit.path[-1]] = edit.value


def _load(text: str, source: str) -> Any:
    try:
        return _plain(YAML(typ="rt").load(text))
    except YAMLError as error:
        raise ConfigError([f"not valid YAML: {error}"], source=source) from None


def _plain(value: Any) -> Any:
    """Containers of the round-trip reader as plain ones; scalars compare as they are."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _problem(edit: Edit, what: str, source: str) -> ConfigError:
    return ConfigError([f"{'.'.join(edit.path)}: {what}"], source=source)
