"""How every step starts: errors of the package end the process with one message, no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from kvstudy.base.errors import EXIT_INVALID, KvstudyError


def run(main: Callable[[], None]) -> None:
    """Call a step's `main`; exit with the error's code and its message on stderr.

    KVSTUDY_DEBUG=1 lets the traceback through. A full disk and an interrupt are said in words.
    """
    try:
        main()
    except KvstudyError as error:
        if os.environ.get("KVSTUDY_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the step's one message
        sys.exit(error.exit_code)
    except OSError as error:
        if os.environ.get("KVSTUDY_DEBUG"):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_INVALID)
    except KeyboardInterrupt:
        print("interrupted; finished cells are kept, run again to go on", file=sys.stderr)  # noqa: T201
        sys.exit(130)
