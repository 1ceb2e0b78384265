"""Safe tokens: what is streamed re-encodes to what was sent."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers, processors

from kvstudy.base.digest import sha256_token_ids
from kvstudy.base.errors import UsageError
from kvstudy.emulator.words import Choice, Vocabulary, prompt_sha256


def test_any_text_of_safe_tokens_re_encodes_to_them(tiny_model: Path) -> None:
    """Random sequences, not only the one the server checks at its start."""
    vocabulary = Vocabulary(tiny_model)
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    assert len(vocabulary.safe_ids) > 200
    assert vocabulary.joins_exactly()
    rng = random.Random(1)
    for _ in range(20):
        picks = rng.choices(range(len(vocabulary.safe_ids)), k=300)
        text = b"".join(vocabulary.safe_words[pick] for pick in picks).decode()
        ids = [vocabulary.safe_ids[pick] for pick in picks]
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids


def test_safe_words_are_json_safe(tiny_model: Path) -> None:
    """A space and ASCII letters: nothing that JSON would escape."""
    for word in Vocabulary(tiny_model).safe_words:
        assert word[:1] == b" "
        assert word[1:].isalpha() and word.isascii()


def test_a_choice_is_fixed_by_the_prompt_and_uses_many_tokens() -> None:
    """Same digest, same walk; other digest, other walk."""
    first = [Choice("1234567890abcdef", 500).index(n) for n in range(400)]
    again = [Choice("1234567890abcdef", 500).index(n) for n in range(400)]
    other = [Choice("ffffffff00000000", 500).index(n) for n in range(400)]
    assert first == again != other
    assert all(0 <= index < 500 for index in first)
    assert len(set(first)) > 100
    assert Choice("0" * 64, 1).index(7) == 0


def test_the_digest_is_the_one_of_base(tiny_model: Path) -> None:
    """The fast way gives the same bytes."""
    ids = [0, 1, 70_000, 2**31]
    assert prompt_sha256(ids) == sha256_token_ids(ids)


def test_a_missing_or_unusable_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        Vocabulary(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="not a tokenizer"):
        Vocabulary(tmp_path)


def test_a_tokenizer_of_llama_3_kind_works_too(tiny_model: Path, tmp_path: Path) -> None:
    """Its splitting rule, its BOS on prompts (and only there)."""
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    rule = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rule), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bos = tokenizer.token_to_id("<|bos|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", bos)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary(tmp_path)
    assert vocabulary.joins_exactly() and len(vocabulary.safe_ids) > 200
    assert vocabulary.encode("bada")[0] == bos
