"""The small tokenizer of the emulated backend, trained from made-up words by a fixed recipe.

The result is shipped in `workload/tokenizer/`; a test trains it again and compares the bytes.
Run `python -m kvstudy.workload.train FOLDER` after a change of the recipe.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kvstudy.base.files import write_json, write_text
from kvstudy.workload.lengths import rng_for

SHIPPED = Path(__file__).parent / "tokenizer"
SPECIAL = ("<s>", "</s>", "<pad>")
VOCABULARY = 2048

_ONSETS = ("b", "br", "d", "dr", "f", "g", "gl", "h", "k", "kr", "l", "m", "n", "p", "pl", "r",
           "s", "st", "t", "tr", "v", "w", "z")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_CODAS = ("", "n", "r", "l", "s", "t", "nd", "rk")


def corpus(words: int = 1500) -> list[str]:
    """Lines of made-up words; the r-th word stands about words / r times, as in a language."""
    rng = rng_for(16827, "tokenizer.words")
    seen: dict[str, None] = {}
    while len(seen) < words:
        syllables = rng.randrange(1, 4)
        word = "".join(
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
        )
        seen[word] = None
    lines = []
    for rank, word in enumerate(seen, start=1):
        lines += [f" {word}"] * (3 + words // rank)
    return lines


def train() -> str:
    """The tokenizer as the text of its tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return str(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True, indent=0)) + "\n"


def save(folder: Path) -> None:
    """Write the tokenizer as a folder that AutoTokenizer reads."""
    write_text(folder / "tokenizer.json", train())
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "pad_token": SPECIAL[2],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1 << 20,
        },
    )


if __name__ == "__main__":
    save(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)
