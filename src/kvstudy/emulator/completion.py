"""The body of POST /v1/completions, checked: what to run, or the error to answer with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstudy.emulator.settings import Dialect

_DEFAULT_MAX_TOKENS = 16
_ID_LIMIT = 1 << 31


class RefusedError(Exception):
    """A request that is answered with an error; `status` is HTTP's."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        kind: str = "BadRequestError",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.kind = kind

    def body(self, dialect: Dialect) -> bytes:
        """The JSON of the error, in the dialect's shape."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        shaped = {"error": error} if dialect is Dialect.VLLM else {"object": "error"} | error
        return json.dumps(shaped, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server accepts."""

    dialect: Dialect
    model_names: tuple[str, ...]
    max_seq_len: int
    vocabulary_size: int
    encode: Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Completion:
    """One accepted request."""

    model: str
    prompt_ids: npt.NDArray[np.uint32]
    max_tokens: int
    stream: bool
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    detokenize: bool = True


def parse(body: bytes, limits: Limits) -> Completion:
    """Read and check a body. Raises RefusedError."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RefusedError("the body must be a JSON object")
    model = _model(fields, limits)
    prompt_ids = _prompt(fields.get("prompt"), limits)
    stream = _flag(fields, "stream", default=False)
    usage = fields.get("stream_options")
    if usage is not None and (not stream or not isinstance(usage, dict)):
        raise RefusedError("stream_options: only with stream = true", param="stream_options")
    if fields.get("n", 1) not in (1, None):
        raise RefusedError("n: this server gives one answer per prompt", param="n")
    detokenize = _flag(fields, "detokenize", default=True)
    options = usage or {}
    return Completion(
        model=model,
        prompt_ids=prompt_ids,
        max_tokens=_max_tokens(fields, len(prompt_ids), limits),
        stream=stream,
        include_usage=_flag(options, "include_usage", default=False),
        continuous_usage=_flag(options, "continuous_usage_stats", default=False),
        token_ids=not detokenize or _flag(fields, "return_token_ids", default=False),
        detokenize=detokenize,
    )


def _model(fields: dict[str, Any], limits: Limits) -> str:
    model = fields.get("model", limits.model_names[0])
    if not isinstance(model, str):
        raise RefusedError("model: expected a name", param="model")
    if model not in limits.model_names:
        missing = limits.dialect is not Dialect.TRTLLM
        raise RefusedError(
            f"The model `{model}` does not exist.",
            status=404 if missing else 400,
            param="model",
            kind="NotFoundError" if missing else "BadRequestError",
        )
    return model


def _flag(fields: dict[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RefusedError(f"{name}: expected true or false, got {value!r}", param=name)
    return value


def _prompt(prompt: Any, limits: Limits) -> npt.NDArray[np.uint32]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        prompt = limits.encode(prompt)
    if not isinstance(prompt, list) or not prompt:
        raise RefusedError(
            "prompt: expected a string, token ids, or a list with one of them", param="prompt"
        )
    try:
        ids = np.array(prompt)
    except (ValueError, OverflowError):
        ids = np.empty(0)
    if ids.ndim != 1 or ids.dtype.kind != "i":
        raise RefusedError("prompt: expected whole numbers as token ids", param="prompt")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= limits.vocabulary_size:
        odd = low if low < 0 else high
        raise RefusedError(
            f"Token id {odd} is out of vocabulary (size {limits.vocabulary_size})", param="prompt"
        )
    return ids.astype("<u4")


def _max_tokens(fields: dict[str, Any], prompt_tokens: int, limits: Limits) -> int:
    value = fields.get("max_tokens")
    if value is None:
        room = limits.max_seq_len - prompt_tokens
        value = room if limits.dialect is Dialect.TRTLLM else min(_DEFAULT_MAX_TOKENS, room)
        value = max(value, 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _ID_LIMIT:
        raise RefusedError(f"max_tokens: expected >= 1, got {value!r}", param="max_tokens")
    if prompt_tokens + value > limits.max_seq_len:
        raise RefusedError(
            f"The sum of prompt length ({prompt_tokens}) and max_tokens ({value}) should not "
            f"exceed max_seq_len ({limits.max_seq_len})",
            param="max_tokens",
        )
    return value
