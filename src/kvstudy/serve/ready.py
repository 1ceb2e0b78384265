"""Whether a server is ready and is what was declared: health, version, model, one real token."""

from __future__ import annotations

import json
from typing import Any

import httpx

from kvstudy.serve.model import Launch, UnfitServerError
from kvstudy.serve.versions import same_version

_PROBE_PROMPT = (11, 23, 37, 41)
_MOST_SHOWN = 200


async def is_healthy(client: httpx.AsyncClient, launch: Launch) -> bool:
    """One look at the health route; connection errors and other statuses mean not yet."""
    try:
        response = await client.get(launch.routes.ready_path)
    except httpx.HTTPError:
        return False
    return response.status_code == httpx.codes.OK


async def check_version(client: httpx.AsyncClient, launch: Launch) -> str | None:
    """The version the server reports; UnfitServerError if it is not the pinned one.

    None where the engine has no such route or does not say.
    """
    routes, pinned = launch.routes, launch.expectations.version
    if routes.version_path is None or pinned is None:
        return None
    found = _get(await _json(client, routes.version_path), routes.version_key)
    if not isinstance(found, str):
        return None
    if not same_version(pinned, found):
        raise UnfitServerError(
            "server_version",
            f"{launch.url}{routes.version_path} reports version {found[:_MOST_SHOWN]}, the "
            f"config pins {pinned}: use the image of the pinned version, or change the entry",
        )
    return found


async def check_model(client: httpx.AsyncClient, launch: Launch) -> None:
    """UnfitServerError if the server lists other models than the expected one."""
    document = await _json(client, "/v1/models")
    data = _get(document, "data")
    if not isinstance(data, list):
        return
    served = [name for name in (_get(entry, "id") for entry in data) if isinstance(name, str)]
    if served and launch.expectations.served_model not in served:
        raise UnfitServerError(
            "server_model",
            f"{launch.url}/v1/models serves {', '.join(served)[:_MOST_SHOWN]}, "
            f"expected {launch.expectations.served_model}: is another server on this port?",
        )


async def has_answered(client: httpx.AsyncClient, launch: Launch) -> str | None:
    """One real completion of one token; None if it came, else what came instead.

    The prompt is four token ids that no generated workload begins with.
    """
    body = {
        "model": launch.expectations.served_model,
        "prompt": list(_PROBE_PROMPT),
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
    }
    try:
        response = await client.post("/v1/completions", json=body)
    except httpx.HTTPError as error:
        return f"no answer ({type(error).__name__})"
    if response.status_code != httpx.codes.OK:
        return f"HTTP {response.status_code}: {response.text[:_MOST_SHOWN]}"
    choices = _get(_parsed(response), "choices")
    if not isinstance(choices, list) or not choices:
        return f"an answer without choices: {response.text[:_MOST_SHOWN]}"
    return None


async def _json(client: httpx.AsyncClient, path: str) -> Any:
    try:
        response = await client.get(path)
    except httpx.HTTPError:
        return None
    return _parsed(response) if response.status_code == httpx.codes.OK else None


def _parsed(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return None


def _get(document: Any, key: str) -> Any:
    return document.get(key) if isinstance(document, dict) else None
