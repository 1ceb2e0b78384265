"""A sleep that ends within some 50 us of its time.

An event loop on epoll rounds timeouts up to whole milliseconds. A kernel timer, waited for like a
socket, does not. Where there is none the loop's own timers serve.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from ctypes import c_int, c_long

from kvstudy.base.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _ITimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", c_long),
        ("interval_ns", c_long),
        ("value_s", c_long),
        ("value_ns", c_long),
    )


class Timer:
    """One sleeper's timer; only one sleep at a time."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._waiter: asyncio.Future[None] | None = None
        create = getattr(self._libc, "timerfd_create", None)
        if create is not None:
            self._fd = create(c_int(_CLOCK_MONOTONIC), c_int(os.O_NONBLOCK | os.O_CLOEXEC))
        self._is_watched = False

    async def sleep_until(self, monotonic_ns: int) -> None:
        """Return when `time.monotonic_ns()` has reached `monotonic_ns`."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        if self._fd >= 0:
            if not self._is_watched:
                loop.add_reader(self._fd, self._expired)
                self._is_watched = True
            seconds, nanoseconds = divmod(max(1, monotonic_ns), NS_PER_S)
            spec = _ITimerSpec(0, 0, seconds, nanoseconds)
            self._libc.timerfd_settime(c_int(self._fd), c_int(_ABSOLUTE), ctypes.byref(spec), None)
        else:
            loop.call_at(monotonic_ns / NS_PER_S, self._wake)
        await waiter

    def close(self) -> None:
        """Give the timer back."""
        if self._fd >= 0:
            if self._is_watched:
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
