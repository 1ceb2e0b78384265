"""The whole exception tree of the package.

KvstudyError                 anything kvstudy itself can say about what went wrong
├── UsageError               the command line cannot be acted on (exit 64)
│   ├── ConfigError          config.yaml or a published-claims file is wrong (exit 64)
│   └── SpecError            a simulation spec is wrong (exit 64)
├── PinError                 a pinned identity is missing or does not match (exit 2)
├── ServerError              a server did not start, was not what was declared, or died (exit 2)
├── DataError                a file is missing, damaged or of another schema (exit 2)
├── CellError                a cell cannot be measured; carries the stable reason code (exit 2)
└── LivelockError            a simulated run cannot make progress; carries the state (exit 2)

Every message names the thing that is wrong and what to do next.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_NOT_REPRODUCED = 1
EXIT_INVALID = 2
EXIT_USAGE = 64


class KvstudyError(Exception):
    """Base of all errors that are reported without a traceback."""

    exit_code = EXIT_INVALID


class UsageError(KvstudyError):
    """The command line or an input document cannot be acted on."""

    exit_code = EXIT_USAGE


class ConfigError(UsageError):
    """One or more problems in a configuration document, all shown at once.

    `problems` are complete lines `dotted.path: what was expected, got value`.
    """

    def __init__(self, problems: list[str], *, source: str = "config.yaml") -> None:
        self.problems = list(problems)
        self.source = source
        count = len(self.problems)
        head = f"{source}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {line}" for line in self.problems)]))


class SpecError(UsageError):
    """A simulation spec is wrong; the message names the key, the value and what was expected."""


class PinError(KvstudyError):
    """A pinned identity (image, model, tokenizer) is missing or does not match."""


class ServerError(KvstudyError):
    """A server did not start, is not what was declared, or died."""


class DataError(KvstudyError):
    """A file that should exist is missing, damaged, or has another schema."""


class CellError(KvstudyError):
    """A cell cannot be measured.

    `reason` is a stable code from `kvstudy.base.reasons`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class LivelockError(KvstudyError):
    """A simulated run cannot make progress: no request can ever be scheduled again."""
