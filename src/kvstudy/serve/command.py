"""Engine, server and arm to a launch: a dict of pure functions."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from kvstudy.base.errors import ServerError
from kvstudy.serve.adapters import llamacpp, sglang, trtllm, vllm
from kvstudy.serve.model import EngineSettings, Launch, ServerSettings

ADAPTERS: dict[str, Callable[..., Launch]] = {
    "trtllm": trtllm.build,
    "vllm": vllm.build,
    "sglang": sglang.build,
    "llamacpp": llamacpp.build,
}


def build(
    engine: EngineSettings,
    server: ServerSettings,
    options: Mapping[str, Any],
    *,
    model: str,
    served_name: str,
    port: int,
    api_key: str | None,
) -> Launch:
    """The launch of one arm of one engine.

    `options` are the arm's: merged into trtllm's YAML, flags of the other engines. Clients must
    use `launch.expectations.served_model`: not every engine can be told a name. `api_key` is
    dropped where the engine takes none; `launch.api_key` is the one in force.
    """
    if engine.adapter not in ADAPTERS:
        known = ", ".join(ADAPTERS)
        raise ServerError(f"adapter {engine.adapter!r}: not known; expected one of {known}")
    return ADAPTERS[engine.adapter](
        engine,
        server,
        options,
        model=model,
        served_name=served_name,
        port=port,
        api_key=api_key,
    )


def new_api_key() -> str:
    """A random key for one server."""
    return secrets.token_urlsafe(24)
