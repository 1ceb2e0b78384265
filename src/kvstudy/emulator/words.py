"""Answer texts whose joined tokens re-encode to exactly the tokens that were sent.

A safe token decodes to one space and ASCII letters, and that text alone encodes to the token.
Byte-level tokenizers split before such a space, so a text of safe tokens is cut where it was
joined.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from kvstudy.base.errors import UsageError

MOST_SAFE_TOKENS = 2000
_SPACE_MARK = "Ġ"


class Vocabulary:
    """The model's tokenizer and its safe tokens, lowest ids first."""

    def __init__(self, tokenizer_dir: Path) -> None:
        path = tokenizer_dir / "tokenizer.json"
        if not path.is_file():
            raise UsageError(f"{path}: no such file; name a folder that holds a tokenizer.json")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise UsageError(f"{path}: not a tokenizer ({error})") from error
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values(), default=-1) + 1
        self.safe_ids, texts = self._safe(vocabulary)
        if not self.safe_ids:
            raise UsageError(
                f"{path}: no token is a space and ASCII letters; byte-level BPE needed"
            )
        self.safe_words = [text.encode() for text in texts]

    def _safe(self, vocabulary: dict[str, int]) -> tuple[list[int], list[str]]:
        found = sorted(
            (token_id, " " + token[1:])
            for token, token_id in vocabulary.items()
            if token[0:1] == _SPACE_MARK and _is_word(token[1:])
        )[: 2 * MOST_SAFE_TOKENS]
        encoded = self._tokenizer.encode_batch(
            [text for _, text in found], add_special_tokens=False
        )
        safe = [
            (token_id, text)
            for (token_id, text), encoding in zip(found, encoded, strict=True)
            if encoding.ids == [token_id]
        ][:MOST_SAFE_TOKENS]
        return [token_id for token_id, _ in safe], [text for _, text in safe]

    def encode(self, text: str) -> list[int]:
        """Token ids of a string prompt; with BOS only if the tokenizer itself adds it."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def joins_exactly(self) -> bool:
        """Whether a text of all safe tokens, in a mixed order, re-encodes to them."""
        order = [(index * 7919) % len(self.safe_ids) for index in range(len(self.safe_ids))]
        text = b"".join(self.safe_words[index] for index in order).decode()
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return bool(ids == [self.safe_ids[index] for index in order])


def _is_word(text: str) -> bool:
    return text.isascii() and text.isalpha()


def prompt_sha256(token_ids: npt.ArrayLike) -> str:
    """The digest a prompt is known by: equal to `base.digest.sha256_token_ids`, but fast."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<u4").tobytes()).hexdigest()


class Choice:
    """Which safe token a request's n-th output token is: a walk fixed by the prompt's digest."""

    __slots__ = ("_at", "_size", "_step")

    def __init__(self, digest: str, size: int) -> None:
        self._at = int(digest[:8], 16) % size
        self._step = 1 + int(digest[8:16], 16) % max(1, size - 1)
        self._size = size

    def index(self, number: int) -> int:
        """Position in the safe list of output token `number`, from 0."""
        return (self._at + number * self._step + (number * number) // 7) % self._size
