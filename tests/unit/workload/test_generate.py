"""Prompts are exact, distinct, reproducible, and the repeat moves only the order."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RustTokenizer

from kvstudy.base.digest import sha256_text
from kvstudy.base.errors import DataError
from kvstudy.workload.generate import generate, manifest
from kvstudy.workload.lengths import draw, rng_for, submission_order
from kvstudy.workload.tokens import HubTokenizer, plain_token_ids, tokenizer_digest
from kvstudy.workload.train import SHIPPED, train


@pytest.fixture(scope="module")
def tokenizer() -> HubTokenizer:
    return HubTokenizer(SHIPPED)


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "name": "W-X",
        "seed": 16827,
        "requests": 12,
        "input_tokens": 100,
        "output_tokens": {"uniform": [3, 9]},
        "output_cap_tokens": 16,
        "warmup": {"requests": 4, "concurrency": 2},
        **changes,
    }


def test_every_prompt_is_exact_by_another_library(tokenizer: HubTokenizer) -> None:
    """The text form, encoded by the tokenizers library itself, gives the ids back."""
    rust = RustTokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    for row in generate(spec(), tokenizer):
        ids = row["prompt_token_ids"]
        assert len(ids) == row["input_tokens"] == 100
        assert rust.encode(row["prompt_text"], add_special_tokens=False).ids == ids
        assert not {0, 1, 2} & set(ids)


def test_no_two_prompts_share_a_beginning_and_warm_up_is_disjoint(
    tokenizer: HubTokenizer,
) -> None:
    rows = generate(spec(requests=200), tokenizer)
    beginnings = {tuple(row["prompt_token_ids"][:4]) for row in rows}

    assert len(beginnings) == len(rows) == 204
    assert [row["phase"] for row in rows].count("warmup") == 4


def test_the_set_is_fixed_by_the_seed_alone(tokenizer: HubTokenizer) -> None:
    """The digest was computed once and is pinned: another machine must find the same."""
    rows = generate(spec(), tokenizer)
    joined = sha256_text("".join(row["prompt_sha256"] for row in rows))

    assert generate(spec(), tokenizer) == rows
    assert joined == "4d492851d0bb6faad9e8dc8058b4b7fe7aad9236ce2ea3496bc085216e87febc"
    assert generate(spec(seed=1), tokenizer) != rows


def test_the_prompt_digest_is_over_little_endian_ids(tokenizer: HubTokenizer) -> None:
    row = generate(spec(requests=1), tokenizer)[-1]
    raw = b"".join(i.to_bytes(4, "little") for i in row["prompt_token_ids"])

    assert row["prompt_sha256"] == hashlib.sha256(raw).hexdigest()


def test_changing_the_outputs_does_not_move_the_prompts(tokenizer: HubTokenizer) -> None:
    one, two = generate(spec(), tokenizer), generate(spec(output_tokens=7), tokenizer)

    assert [r["prompt_sha256"] for r in one] == [r["prompt_sha256"] for r in two]


def test_the_repeat_moves_only_the_order() -> None:
    first, second = (submission_order(16827, "W-C", repeat, 128) for repeat in (1, 2))

    assert first != second
    assert sorted(first) == sorted(second) == list(range(128))
    assert first == submission_order(16827, "W-C", 1, 128)


def test_lengths_stay_within_both_ends() -> None:
    values = draw({"uniform": [128, 131]}, 400, rng_for(1, "x"))

    assert set(values) == {128, 129, 130, 131}
    assert draw(512, 3, rng_for(1, "x")) == [512, 512, 512]


def test_the_manifest_names_what_fixes_the_set(tokenizer: HubTokenizer) -> None:
    rows = generate(spec(), tokenizer)
    made = manifest(spec(), rows, tokenizer_digest(SHIPPED))

    assert made["spec"]["seed"] == 16827
    assert len(made["requests"]) == 16
    assert made["tokenizer_sha256"] == tokenizer_digest(SHIPPED)
    assert len(set(made["order_sha256"].values())) == 3


def test_prompts_too_short_to_differ_are_refused(tokenizer: HubTokenizer) -> None:
    plain = len(plain_token_ids(tokenizer))
    with pytest.raises(DataError, match="cannot all differ"):
        generate(spec(input_tokens=1, requests=plain + 1, warmup=None), tokenizer)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    for call in (HubTokenizer, tokenizer_digest):
        with pytest.raises(DataError, match=r"no tokenizer\.json"):
            call(tmp_path)


def test_the_shipped_tokenizer_is_what_the_recipe_trains() -> None:
    assert train() == (SHIPPED / "tokenizer.json").read_text(encoding="utf-8")
