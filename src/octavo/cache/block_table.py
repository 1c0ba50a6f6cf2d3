"""Address translation of one sequence: logical block → physical block."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from octavo.cache.block_pool import BlockPool
from octavo.cache.prefix_tree import PrefixLevel
from octavo.cache.promises import Promise


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence in order, each held once. Append-only, except for copy-on-write."""

    block_size: int
    namespace: Hashable = ()
    blocks: list[int] = field(default_factory=list)
    num_tokens: int = 0
    """Positions [0, num_tokens) have a slot. Blocks beyond are for tokens to come, and nobody shares them."""
    num_published: int = 0
    """Leading full blocks whose content stands in the prefix tree, here or in a twin."""
    level: PrefixLevel | None = None
    """The tree's node of the last of them."""
    promise: Promise | None = None
    is_released: bool = False

    def slot(self, position: int) -> int:
        """Where position's K and V are: block · block_size + offset. Raises IndexError beyond the table."""
        block, offset = divmod(position, self.block_size)
        return self.blocks[block] * self.block_size + offset

    def share_all_of(self, other: BlockTable, pool: BlockPool) -> None:
        """Fork: hold the blocks of all tokens of `other` once more. This table must be empty.

        No promise comes with it, and no block for tokens to come.
        """
        for block in other.blocks[: -(-other.num_tokens // self.block_size)]:
            pool.share(block)
            self.blocks.append(block)
        self.num_tokens, self.num_published, self.level = other.num_tokens, other.num_published, other.level

    def shared_blocks(self, start: int, end: int, pool: BlockPool) -> list[int]:
        """Logical blocks that a write of positions [start, end) needs to copy first."""
        last = min(-(-end // self.block_size), len(self.blocks))
        return [
            index for index in range(start // self.block_size, last) if pool.is_shared(self.blocks[index])
        ]

    def replace_shared(self, index: int, pool: BlockPool, take: Callable[[], int]) -> tuple[int, int]:
        """Copy-on-write of logical block `index`: a private block takes its place. Returns (source, target).

        The source stays pinned until the step ends, so that a step that fails can return to it.
        """
        source = self.blocks[index]
        target = take()
        self.blocks[index] = target
        pool.pin(source)
        pool.release(source)
        return source, target

    def release(self, pool: BlockPool) -> None:
        """Give every block back, the tail first, so that a cached chain is eaten from its leaf.

        The list that a batch may still read is left as it was. Raises RuntimeError the second time.
        """
        if self.is_released:
            raise RuntimeError("the table was released before")
        self.is_released = True
        blocks, self.blocks = self.blocks, []
        for block in reversed(blocks):
            pool.release(block)
