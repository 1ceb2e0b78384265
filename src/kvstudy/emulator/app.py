"""The HTTP side: completions by hand in raw ASGI, everything else in Starlette."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kvstudy.emulator.answer import Answer
from kvstudy.emulator.completion import Completion, Limits, RefusedError, parse
from kvstudy.emulator.expected import Expected, Workload
from kvstudy.emulator.faults import Faults
from kvstudy.emulator.frames import DONE, Echo, Frames
from kvstudy.emulator.pacer import Pacer
from kvstudy.emulator.settings import Dialect, Launch
from kvstudy.emulator.words import Vocabulary, prompt_sha256

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_MOST_BODY_BYTES = 64 << 20
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_HANG_POLL_S = 0.05


class Completions:
    """POST /v1/completions."""

    def __init__(
        self,
        launch: Launch,
        pacer: Pacer,
        vocabulary: Vocabulary,
        workload: Workload,
        faults: Faults,
    ) -> None:
        server = launch.server
        names = [name for name in (faults.model, server.model_name) if name is not None]
        if server.dialect is Dialect.TRTLLM and server.model not in names:
            names.append(server.model)
        self._launch = launch
        self._pacer = pacer
        self._vocabulary = vocabulary
        self._workload = workload
        self._faults = faults
        self._count = self._ended = self._serial = 0
        self.limits = Limits(
            dialect=server.dialect,
            model_names=tuple(names),
            max_seq_len=server.max_seq_len,
            vocabulary_size=vocabulary.size,
            encode=vocabulary.encode,
        )

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        expected = None
        try:
            completion = parse(await _body(receive), self.limits)
            digest = prompt_sha256(completion.prompt_ids)
            expected = self._workload.claim(digest)
            number = self._number(expected)
            self._refuse_on_fault(number)
        except RefusedError as refused:
            self._pacer.excuse(expected)
            await _answer(send, refused.status, refused.body(self.limits.dialect))
            return
        except ConnectionError:
            return
        answer = self._answer(completion, digest, expected, number)
        await self._serve(answer, completion, number, receive, send)

    def _number(self, expected: Expected | None) -> int:
        """How many completions came so far, this one included; 0 for one that does not count."""
        wanted = self._faults.phase
        if self._workload and expected is None:
            return 0
        if expected is not None and wanted not in (
            None,
            self._workload.phases[expected.phase].name,
        ):
            return 0
        self._count += 1
        return self._count

    def _refuse_on_fault(self, number: int) -> None:
        if self._faults.kills_at(number):
            os.kill(os.getpid(), signal.SIGKILL)
        status = self._faults.status(number)
        if status is not None:
            raise RefusedError("injected fault", status=status, kind="InternalServerError")

    def _answer(
        self, completion: Completion, digest: str, expected: Expected | None, number: int
    ) -> Answer:
        cap = completion.max_tokens
        true_length = cap if expected is None else min(cap, expected.output_tokens)
        true_length = self._faults.output_tokens(number, true_length)
        self._serial += 1
        echo = Echo(
            dialect=self.limits.dialect,
            version=self._launch.emulation.version,
            model=self._faults.model or completion.model,
            prompt_tokens=len(completion.prompt_ids),
            prompt_ids=completion.prompt_ids.tolist() if completion.token_ids else (),
            include_usage=completion.include_usage,
            continuous_usage=completion.continuous_usage,
            token_ids=completion.token_ids,
            text=completion.detokenize,
        )
        return Answer(
            str(self._serial),
            tokens=(len(completion.prompt_ids), true_length, cap),
            digest=digest,
            expected=expected,
            frames=Frames(echo),
            vocabulary=self._vocabulary,
            stream=completion.stream,
        )

    async def _serve(
        self, answer: Answer, completion: Completion, number: int, receive: Receive, send: Send
    ) -> None:
        if completion.stream:
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        self._pacer.submit(answer)
        watch = asyncio.create_task(self._watch(answer, receive))
        try:
            if completion.stream:
                await self._stream(answer, number, send)
            else:
                body = await answer.take()
                if body:
                    await _answer(send, 200, body)
        finally:
            watch.cancel()
            if not answer.is_closed and not answer.is_gone:
                self._pacer.cancel(answer)
        self._after(number)

    async def _watch(self, answer: Answer, receive: Receive) -> None:
        """Cancel the request when its client goes away before the answer is closed."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if answer.is_closed:
            answer.leave()
        elif not answer.is_gone:
            self._pacer.cancel(answer)

    async def _stream(self, answer: Answer, number: int, send: Send) -> None:
        faults = self._faults
        sent = 0
        more = True
        while more:
            data = await answer.take()
            if answer.is_gone:
                return
            more = not answer.is_closed
            if faults.spoils(number):
                data, hangs = faults.before_hang(number, sent, data)
                if hangs:
                    await send(_part(data, more=True))
                    await _until_gone(answer)
                    return
                data = faults.with_garbage(number, sent, data)
                sent += data.count(b"data: ")
                if faults.cuts_end(number) and not more:
                    await send(_part(data.replace(DONE, b""), more=True))
                    return
            await send(_part(data, more=more))

    def _after(self, number: int) -> None:
        if number:
            self._ended += 1
            if self._faults.kills_after(self._ended):
                os.kill(os.getpid(), signal.SIGKILL)


async def _until_gone(answer: Answer) -> None:
    while not answer.is_gone:
        await asyncio.sleep(_HANG_POLL_S)


async def _body(receive: Receive) -> bytes:
    """The whole body. ConnectionError if the client goes away before its end."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > _MOST_BODY_BYTES:
            raise RefusedError("the body is too large", status=413)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _part(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [*_JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
