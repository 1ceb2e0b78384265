"""Lengths and orders from named seeds: one generator per dimension, so none moves another."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any


def rng_for(seed: int, *names: str | int) -> random.Random:
    """A generator for one named dimension of the study.

    The state depends on the seed and the names alone: never on `hash()`, the platform, or what
    other dimensions drew. Python's Mersenne Twister and `randrange` are stable across versions.
    """
    text = "/".join(["kvstudy", str(seed), *map(str, names)])
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def draw(length: int | Mapping[str, Any], count: int, rng: random.Random) -> list[int]:
    """`count` lengths in tokens: a constant, or uniform over both ends included."""
    if isinstance(length, int):
        return [length] * count
    low, high = length["uniform"]
    return [rng.randrange(low, high + 1) for _ in range(count)]


def submission_order(seed: int, workload: str, repeat: int, count: int) -> list[int]:
    """Order in which one repeat submits the fixed set: a permutation of range(count).

    The set does not depend on the repeat; only this order does.
    """
    order = list(range(count))
    rng_for(seed, "order", workload, repeat).shuffle(order)
    return order
