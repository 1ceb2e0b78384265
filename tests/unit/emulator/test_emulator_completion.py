"""Bodies of /v1/completions: what is run, and what is refused how."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstudy.emulator.completion import Completion, Limits, RefusedError, parse
from kvstudy.emulator.settings import Dialect


def limits(dialect: Dialect = Dialect.TRTLLM) -> Limits:
    return Limits(dialect, ("tiny",), 100, 1000, lambda text: [len(text), 7])


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 5} | fields).encode()


def refused(raw: bytes, dialect: Dialect = Dialect.TRTLLM) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        parse(raw, limits(dialect))
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([4, 5], [4, 5]),
        ([[4, 5]], [4, 5]),
        ("abcd", [4, 7]),
        (["abcd"], [4, 7]),
        ([0, 999], [0, 999]),
    ],
)
def test_prompts_as_ids_a_list_of_one_or_text(prompt: Any, ids: list[int]) -> None:
    """All shapes that the real ones take, one prompt each."""
    assert parse(body(prompt=prompt), limits()).prompt_ids.tolist() == ids


@pytest.mark.parametrize(
    "prompt",
    [None, [], [[]], [[1], [2]], [1.5], ["a", "b"], [1000], [-1], {"a": 1}, [2**70], [[[1]]], 5],
)
def test_bad_prompts_are_refused_with_400(prompt: Any) -> None:
    """Wrong types, nothing at all, ids outside the vocabulary."""
    error = refused(body(prompt=prompt))
    assert (error.status, error.param) == (400, "prompt")


def test_the_sum_of_prompt_and_cap_may_not_pass_the_limit() -> None:
    """100 is the limit: 97 after 3 prompt tokens is the most."""
    assert parse(body(max_tokens=97), limits()).max_tokens == 97
    error = refused(body(max_tokens=98))
    assert error.status == 400 and "98" in error.message and "100" in error.message
    assert refused(body(prompt=[1] * 100, max_tokens=None)).status == 400


@pytest.mark.parametrize("value", [0, -1, "5", 1.5, True, 2**40])
def test_bad_caps_are_refused(value: Any) -> None:
    """Zero, negative, not a whole number."""
    assert refused(body(max_tokens=value)).param == "max_tokens"


def test_without_a_cap_trtllm_gives_what_is_left_and_the_others_sixteen() -> None:
    """Their documented defaults."""
    assert parse(body(max_tokens=None), limits()).max_tokens == 97
    for dialect in (Dialect.VLLM, Dialect.SGLANG):
        assert parse(body(max_tokens=None), limits(dialect)).max_tokens == 16


def test_options_are_read() -> None:
    """Usage needs a stream; ids come on request."""
    completion = parse(
        body(stream=True, stream_options={"include_usage": True}, return_token_ids=True), limits()
    )
    assert isinstance(completion, Completion)
    assert completion.stream and completion.include_usage and completion.token_ids
    assert not completion.continuous_usage
    assert parse(body(detokenize=False), limits()).token_ids
    assert refused(body(stream_options={"include_usage": True})).param == "stream_options"
    assert refused(body(stream="yes")).param == "stream"
    assert refused(body(n=2)).param == "n"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"nonsense", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_a_json_object_is_refused(raw: bytes) -> None:
    """Never an exception of another kind."""
    assert refused(raw).status == 400


def test_error_shapes_differ_by_dialect() -> None:
    """Two are flat with object "error"; vLLM: nested; unknown models 400 or 404."""
    trtllm = refused(body(model="other"))
    assert json.loads(trtllm.body(Dialect.TRTLLM)) == {
        "object": "error",
        "message": "The model `other` does not exist.",
        "type": "BadRequestError",
        "param": "model",
        "code": 400,
    }
    vllm = refused(body(model="other"), Dialect.VLLM)
    assert json.loads(vllm.body(Dialect.VLLM))["error"]["code"] == 404
