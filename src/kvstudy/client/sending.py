"""Sends planned requests and keeps their recordings: what both load models share.

Bodies are encoded before the start. While requests are in flight nothing is parsed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from kvstudy.base.errors import UsageError
from kvstudy.client.connection import Exchange
from kvstudy.client.model import Limits, Planned, Target
from kvstudy.client.recording import Ending, Recording
from kvstudy.client.request import Facts
from kvstudy.client.sse import EventParser
from kvstudy.client.transport import RecordingTransport


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """One request that was begun."""

    facts: Facts
    exchange: Exchange

    @property
    def recording(self) -> Recording:
        """What has been received."""
        return self.exchange.recording


class Sender:
    """The planned requests, ready to go; use as an async context manager."""

    def __init__(self, target: Target, planned: Sequence[Planned], limits: Limits) -> None:
        self._planned = planned
        self._limits = limits
        self._transport = RecordingTransport(connect_s=limits.connect_s)
        # The transport bounds connecting and the watchdog the streams; httpx times nothing.
        self._client = httpx.AsyncClient(
            transport=self._transport,
            timeout=None,  # noqa: S113 - see above
            trust_env=False,
        )
        self._requests = [_request(self._client, target, one) for one in planned]
        self.active: set[Flight] = set()
        self.ended: list[Flight] = []
        self.stopping = False
        self.stop_with = (Ending.CANCELLED, "the phase was stopped")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    @property
    def planned_count(self) -> int:
        """How many requests there are to send."""
        return len(self._planned)

    async def warm(self, connections: int) -> None:
        """Open connections ahead of the first sends."""
        if self._requests:
            await self._transport.warm(self._requests[0].url, connections)

    def facts(self, order: int, lane: int | None = None, scheduled_ns: int | None = None) -> Facts:
        """What the row of request `order` holds before there is a response."""
        one = self._planned[order]
        return Facts(
            request_id=one.request_id,
            submit_order=order,
            lane=lane,
            scheduled_ns=scheduled_ns,
            planned_input_tokens=one.input_tokens,
            planned_output_tokens=one.output_tokens,
            output_cap_tokens=one.output_cap_tokens,
        )

    async def send(
        self, order: int, *, lane: int | None = None, scheduled_ns: int | None = None
    ) -> None:
        """Send one request and wait for its end; never raises for what the server does."""
        enough = None
        if self._limits.close_after_planned:
            enough = EnoughChoices(self._planned[order].output_tokens)
        exchange = Exchange(Recording(), enough)
        flight = Flight(self.facts(order, lane, scheduled_ns), exchange)
        self.active.add(flight)
        request = self._requests[order]
        request.extensions["exchange"] = exchange
        try:
            response = await self._client.send(request, stream=True)
            try:
                await exchange.done
            finally:
                await response.aclose()
        except httpx.TimeoutException as error:
            exchange.end(Ending.TIMEOUT, str(error))
        except httpx.HTTPError as error:
            exchange.end(Ending.FAILED, str(error))
        except asyncio.CancelledError:
            exchange.end(*self.stop_with)
            raise
        finally:
            self.active.discard(flight)
            self.ended.append(flight)


class EnoughChoices:
    """Says when a stream has brought the planned number of choice events.

    A choice event without text counts: engines hold back half a character that way, and the
    token behind it was generated. The JSON is not parsed; inside a JSON string the quotes of
    `"text"` would be escaped.
    """

    __slots__ = ("_left", "_parser")

    def __init__(self, planned: int) -> None:
        self._left = planned
        self._parser = EventParser()

    def __call__(self, piece: bytes) -> bool:
        """Count the events in one read; whether the planned number is reached."""
        for event in self._parser.feed(piece):
            self._left -= b'"text"' in event.data
        return self._left <= 0


def body_of(target: Target, planned: Planned) -> bytes:
    """The request body, as sent."""
    body: dict[str, Any] = {
        "model": target.model,
        "prompt": planned.prompt,
        "max_tokens": planned.output_cap_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    if target.include_usage:
        body["stream_options"] = {"include_usage": True}
    return json.dumps({**body, **target.extra_body}, separators=(",", ":")).encode()


def _request(client: httpx.AsyncClient, target: Target, planned: Planned) -> httpx.Request:
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "user-agent": "kvstudy",
    }
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    url = f"{target.base_url.rstrip('/')}/v1/completions"
    try:
        return client.build_request("POST", url, content=body_of(target, planned), headers=headers)
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise UsageError(f"{target.base_url}: not a server's URL ({error})") from error
