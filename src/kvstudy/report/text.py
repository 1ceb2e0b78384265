"""Numbers and foreign text as they stand on paper: HTML, Markdown, CSV and terminal safe."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
DASH = "\N{EN DASH}"
THIN = "\N{NARROW NO-BREAK SPACE}"
_ZERO_WIDTH = "\N{ZERO WIDTH SPACE}"

_TERMINAL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-_])")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]|~!#])")
_REFERENCE = re.compile(r"(?i)(@(?=\w)|(?<!&)\\#(?=\d)|\bGH-(?=\d))")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Safe(str):
    """Text that is Markdown already; everything else is escaped on output."""

    __slots__ = ()


def clean(text: object, *, keep_lines: bool = False) -> str:
    """Foreign text without terminal escapes, control and direction-changing characters."""
    plain = _TERMINAL.sub("", str(text)).replace("\r\n", "\n")
    kept = []
    for character in plain:
        if character == "\n":
            kept.append("\n" if keep_lines else " ")
        elif character == "\t":
            kept.append(" ")
        elif unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn"):
            kept.append(character)
    return "".join(kept)


def markdown(text: object) -> Safe:
    """Foreign text as inert GitHub-flavoured Markdown, on one line.

    Pipes, markup and HTML are escaped; mentions and issue references are broken by a zero-width
    space, because GitHub looks for them after unescaping.
    """
    if isinstance(text, Safe):
        return text
    escaped = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = _MARKDOWN.sub(r"\\\1", escaped)
    return Safe(_REFERENCE.sub(lambda match: match.group(0) + _ZERO_WIDTH, escaped))


def fenced(text: object, language: str = "") -> Safe:
    """Foreign text as a code block whose fence the text cannot close."""
    body = clean(text, keep_lines=True).strip("\n")
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return Safe(f"{fence}{language}\n{body}\n{fence}")


def csv_line(fields: Iterable[object]) -> str:
    """One CSV line. Text that a spreadsheet would run as a formula is disarmed by a quote."""
    return ",".join(_csv_field(field) for field in fields) + "\n"


def _csv_field(field: object) -> str:
    if field is None:
        return ""
    if isinstance(field, bool):
        return "true" if field else "false"
    if isinstance(field, int | float):
        return "" if isinstance(field, float) and not math.isfinite(field) else f"{field:.12g}"
    text = clean(field)
    if text.startswith(_FORMULA):
        text = "'" + text
    if any(character in text for character in ',"\n'):
        text = '"' + text.replace('"', '""') + '"'
    return text


def decimals(step: float) -> int:
    """Digits after the point that a last printed digit of this size asks for."""
    return max(0, -math.floor(math.log10(step) + 1e-9))


def number(value: float | None, step: float = 1.0, *, signed: bool = False) -> str:
    """A number to the given last digit, thousands grouped, with a true minus sign.

    An undefined number is a dash. A value that rounds to zero has no sign.
    """
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{abs(value):,.{decimals(step)}f}"
    is_zero = not text.strip("0.,")
    sign = "" if is_zero else MINUS if value < 0 else "+" if signed else ""
    return sign + text


def with_unit(value: float | None, unit: str, step: float = 1.0) -> str:
    """A number followed by its unit; `x` becomes a multiplication sign; a change is signed."""
    text = number(value, step, signed=unit == "%")
    if text == DASH or not unit:
        return text
    if unit == "x":
        return text + TIMES
    return f"{text}{THIN}{unit}"


def significant(value: float | None, digits: int = 4) -> float:
    """Size of the last digit that shows `digits` significant ones, at most 1."""
    if not value or not math.isfinite(value):
        return 1.0
    return float(min(1.0, 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)))


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 cell`, `3 cells`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
