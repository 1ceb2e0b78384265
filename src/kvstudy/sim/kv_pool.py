"""The block pool: a count of free and held blocks that never loses one."""

from __future__ import annotations


class KvPool:
    """A fixed number of blocks, each free or held. Law 1: free + held = total."""

    __slots__ = ("free_blocks", "held_blocks", "peak_blocks", "total_blocks")

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self.free_blocks = total_blocks
        self.held_blocks = 0
        self.peak_blocks = 0

    def take(self, blocks: int) -> None:
        """Hold `blocks` more; ValueError if so many are not free."""
        if not 0 <= blocks <= self.free_blocks:
            raise ValueError(f"cannot take {blocks} blocks: {self}")
        self.free_blocks -= blocks
        self.held_blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.held_blocks)

    def give_back(self, blocks: int) -> None:
        """Free `blocks`; ValueError if so many are not held."""
        if not 0 <= blocks <= self.held_blocks:
            raise ValueError(f"cannot give back {blocks} blocks: {self}")
        self.free_blocks += blocks
        self.held_blocks -= blocks

    def __repr__(self) -> str:
        return (
            f"KvPool(free={self.free_blocks}, held={self.held_blocks}, total={self.total_blocks})"
        )
