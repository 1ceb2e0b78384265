"""Tokens whose texts can be joined without changing: the ground of exact prompt lengths.

A *plain* token decodes to one space and ASCII letters, and encodes back to itself alone. A
byte-level BPE splits text in front of every space before it merges, so plain tokens never merge
with their neighbours: any sequence of them, joined, re-tokenises to the same ids. Each generated
prompt is checked all the same.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from kvstudy.base.digest import sha256_file, sha256_json
from kvstudy.base.errors import DataError

_PLAIN = re.compile(r" [A-Za-z]+")
_LEAST = 64


class Tokenizer(Protocol):
    """What the generator needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with no special tokens."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids, special tokens kept and nothing cleaned up."""
        ...

    @property
    def size(self) -> int:
        """Number of ids."""
        ...


class HubTokenizer:
    """A tokenizer folder, loaded by transformers' AutoTokenizer with no network and no code."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "tokenizer.json").is_file():
            raise DataError(f"{folder}: no tokenizer.json here; run the tokenizer rule again")
        # Without torch, transformers would print a line about it for each process.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds to import

        self._tokenizer = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with no special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def count(self, texts: list[str]) -> list[int]:
        """Number of tokens of each text, with no special tokens."""
        if not texts:
            return []
        return [len(ids) for ids in self._tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids, special tokens kept and nothing cleaned up."""
        text = self._tokenizer.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._tokenizer)


def tokenizer_digest(folder: Path) -> str:
    """Identity of a tokenizer folder: SHA-256 over its tokenizer files' names and hashes."""
    names = sorted(p.name for p in folder.glob("*token*.json"))
    if "tokenizer.json" not in names:
        raise DataError(f"{folder}: no tokenizer.json here; run the tokenizer rule again")
    return sha256_json({name: sha256_file(folder / name) for name in names})


def plain_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of all plain tokens, ascending.

    Raises DataError when the tokenizer has too few to make distinct prompts.
    """
    plain = []
    for token_id in range(tokenizer.size):
        text = tokenizer.decode([token_id])
        if _PLAIN.fullmatch(text) and tokenizer.encode(text) == [token_id]:
            plain.append(token_id)
    if len(plain) < _LEAST:
        raise DataError(
            f"the tokenizer has only {len(plain)} tokens of one space and ASCII letters; "
            f"exact prompts need {_LEAST}. Use a byte-level BPE tokenizer"
        )
    return plain
