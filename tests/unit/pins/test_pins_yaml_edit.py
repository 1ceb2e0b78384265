"""Editing config.yaml: what was meant, and not one byte more."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import yaml

from kvstudy.base.errors import ConfigError
from kvstudy.pins.yaml_edit import Edit, apply_edits

DIGEST = "sha256:" + "a" * 64


def changed_lines(before: str, after: str) -> list[str]:
    """Lines added and removed."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[0] in "+-"]


def test_the_published_configuration_changes_in_one_line(root: Path) -> None:
    text = (root / "config.yaml").read_text(encoding="utf-8")
    path = ("engines", "trtllm-1.3.0rc22", "image", "digest")

    after = apply_edits(text, [Edit(path, DIGEST)])

    assert changed_lines(text, after) == [
        "-       digest: to-be-pinned",
        f"+       digest: {DIGEST}",
    ]
    assert after.replace(f"      digest: {DIGEST}", "      digest: to-be-pinned") == text


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("a: {b: old, c: 1}   # keep\n", "a.b", "new", "a: {b: new, c: 1}   # keep\n"),
        ("a:\n  b: 'old' # why\n\n# end\n", "a.b", "new", "a:\n  b: new # why\n\n# end\n"),
        (
            "a:\n  b: x # why\n# end\nz: 1\n",
            "a.c",
            "new",
            "a:\n  b: x # why\n  c: new\n# end\nz: 1\n",
        ),
        ("a: {b: x}  # why\n", "a.c", "new", "a: {b: x, c: new}  # why\n"),
        ("a:\n  b: x", "a.f.n", "new", "a:\n  b: x\n  f: {n: new}"),
        (
            "a:\n  b: [1,\n   2] # l\nz: 1\n",
            "a.c",
            "new",
            "a:\n  b: [1,\n   2] # l\n  c: new\nz: 1\n",
        ),
        (
            "a:\n  b:\n    d: {e: 1} # d\nz: 1\n",
            "a.c",
            "v",
            "a:\n  b:\n    d: {e: 1} # d\n  c: v\nz: 1\n",
        ),
        ("a: {b: old}\n", "a.b", "1" * 40, f'a: {{b: "{"1" * 40}"}}\n'),
        ("a: {b: old}\n", "a.b", "12e3", 'a: {b: "12e3"}\n'),
        ("a: {b: old} # ü\r\n", "a.b", "new", "a: {b: new} # ü\r\n"),
    ],
)
def test_values_are_replaced_or_added_in_place(
    text: str, path: str, value: str, after: str
) -> None:
    result = apply_edits(text, [Edit(tuple(path.split(".")), value)])

    assert result == after
    assert isinstance(yaml.safe_load(result)["a"], dict)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("a: {b: {c: 1}}\n", "a.b", "is not a single value"),
        ("a: 1\n", "z.y.x", "declared in another file"),
        ("a: 1\n", "a.b", "its mapping is not there"),
        ("a: [\n", "a", "not valid YAML"),
        ("a: &x old\nb: *x\n", "b", "undefined alias"),
    ],
)
def test_what_cannot_be_edited_safely_is_refused(text: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_edits(text, [Edit(tuple(path.split(".")), "new")])
