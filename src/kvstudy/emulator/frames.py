"""Server-sent events and JSON answers of /v1/completions, per dialect, as bytes.

The part of a frame that never changes within a request is built once; a token then costs one
join. Shapes: `facts/engines.md` 4.7 and 8, and what real vLLM servers were seen to send.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvstudy.emulator.settings import Dialect

DONE = b"data: [DONE]\n\n"
_NO_REASON = b"null"


@dataclass(frozen=True, slots=True)
class Echo:
    """What an answer repeats of its request."""

    dialect: Dialect
    version: str
    model: str
    prompt_tokens: int
    prompt_ids: Sequence[int] = ()
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    text: bool = True


class Frames:
    """The frames of one streamed answer."""

    __slots__ = ("_between", "_created", "_echo", "_fixed_id", "_head", "_model", "_stem", "_tail")

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._created = int(time.time())
        self._model = json.dumps(echo.model)
        self._stem = uuid.uuid4().hex
        head = '"object":"text_completion",' + f'"created":{self._created},"model":{self._model},'
        start = '"choices":[{"index":0,"text":"'
        self._fixed_id = echo.dialect is not Dialect.TRTLLM
        if self._fixed_id:
            stem = self._stem if echo.dialect is Dialect.SGLANG else f"cmpl-{self._stem}"
            self._head = f'data: {{"id":"{stem}",{head}{start}'.encode()
            self._between = b""
        else:
            self._head = f'data: {{"id":"cmpl-{self._stem[:24]}'.encode()
            self._between = f'",{head}{start}'.encode()
        self._tail = _tails(echo.dialect)

    def token(self, number: int, word: bytes, token_id: int, reason: str | None = None) -> bytes:
        """The frame of output token `number` (from 0); `reason` only on the last."""
        why = _NO_REASON if reason is None else f'"{reason}"'.encode()
        echo = self._echo
        text = word if echo.text else b""
        ids, prompt_ids = b"null", b"null"
        if echo.token_ids:
            ids = b"[%d]" % token_id
            if number == 0:
                prompt_ids = json.dumps(list(echo.prompt_ids), separators=(",", ":")).encode()
        usage = self._usage(number + 1) if echo.continuous_usage else None
        tail = self._tail % {
            b"why": why,
            b"ids": ids,
            b"prompt": prompt_ids,
            b"usage": _json(usage),
        }
        if usage is None and echo.dialect is Dialect.VLLM:
            tail = tail.replace(b',"usage":null', b"")
        if self._fixed_id:
            return b"".join((self._head, text, tail))
        return b"".join((self._head, b"%08x" % number, self._between, text, tail))

    def plain(self) -> tuple[bytes, bytes, bytes] | None:
        """(before the number, between number and word, after the word) of a frame in mid-stream.

        None where frames carry more than a word. `before` is complete where ids do not change.
        """
        echo = self._echo
        if echo.token_ids or echo.continuous_usage or not echo.text:
            return None
        marked = self.token(1, b"\0", 0)
        head, _, tail = marked.partition(b"\0")
        return (head, b"", tail) if self._fixed_id else (self._head, self._between, tail)

    def closing(self, tokens: int) -> bytes:
        """Everything after the last token: the usage frame if asked for, and [DONE]."""
        if not self._echo.include_usage:
            return DONE
        dialect = self._echo.dialect
        kind, stem = "text_completion", f"cmpl-{self._stem}"
        if dialect is Dialect.TRTLLM:
            kind, stem = "chat.completion.chunk", f"chatcmpl-{self._stem}"
        elif dialect is Dialect.SGLANG:
            stem = self._stem
        frame: dict[str, Any] = {"id": stem, "object": kind, "created": self._created}
        frame |= {"model": self._echo.model, "choices": [], "usage": self._usage(tokens)}
        if dialect is Dialect.VLLM:
            frame["system_fingerprint"] = f"vllm-{self._echo.version}"
        return b"data: " + _json(frame) + b"\n\n" + DONE

    def whole(self, words: list[bytes], token_ids: list[int], reason: str) -> bytes:
        """The answer of a request that did not ask for a stream."""
        echo = self._echo
        choice: dict[str, Any] = {
            "index": 0,
            "text": b"".join(words).decode() if echo.text else "",
            "logprobs": None,
            "finish_reason": reason,
        }
        ids = token_ids if echo.token_ids else None
        if echo.dialect is Dialect.SGLANG:
            choice["matched_stop"] = None
        else:
            choice |= {"stop_reason": None, "token_ids": ids}
        if echo.dialect is Dialect.TRTLLM:
            choice |= {"disaggregated_params": None, "avg_decoded_tokens_per_iter": 1.0}
        stem = self._stem if echo.dialect is Dialect.SGLANG else f"cmpl-{self._stem}"
        body: dict[str, Any] = {"id": stem, "object": "text_completion", "created": self._created}
        body |= {"model": echo.model, "choices": [choice], "usage": self._usage(len(token_ids))}
        return _json(body)

    def _usage(self, tokens: int) -> dict[str, Any]:
        prompt = self._echo.prompt_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
        }
        if self._echo.dialect is not Dialect.VLLM:
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
        return usage


def _tails(dialect: Dialect) -> bytes:
    """What follows the word in a token frame, with places for what may change."""
    if dialect is Dialect.TRTLLM:
        return (
            b'","token_ids":%(ids)b,"logprobs":null,"finish_reason":%(why)b,"stop_reason":null,'
            b'"avg_decoded_tokens_per_iter":1.0}],"usage":%(usage)b}\n\n'
        )
    if dialect is Dialect.VLLM:
        return (
            b'","logprobs":null,"finish_reason":%(why)b,"stop_reason":null,'
            b'"prompt_token_ids":%(prompt)b,"token_ids":%(ids)b}],"usage":%(usage)b}\n\n'
        )
    return b'","logprobs":null,"finish_reason":%(why)b,"matched_stop":null}],"usage":%(usage)b}\n\n'


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
