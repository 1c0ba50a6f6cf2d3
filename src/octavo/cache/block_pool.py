"""The pool of physical blocks: reference counts and one free list for free and cached blocks."""

from __future__ import annotations

from collections.abc import Iterator


class BlockPool:
    """Blocks 0 to num_blocks - 1. Every operation is O(1).

    A block is either held (in tables, or pinned by the step in progress) or on the free list. The list holds
    blocks with nothing to find and blocks whose content can still be found (cached); both can be handed out.

        front ─ next to be handed out                                           last to be handed out ─ back
        [ unfindable, unfindable, ... | findable, least recently used, ..., findable, most recently used ]

    The list is intrusive: two arrays of neighbours, with the index num_blocks as the ring's sentinel.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._findable = [False] * num_blocks
        self._pinned: set[int] = set()
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]
        self._num_listed = num_blocks
        self._num_cached = 0

    # Questions

    @property
    def num_listed(self) -> int:
        """Blocks that can be handed out: free and cached."""
        return self._num_listed

    @property
    def num_cached(self) -> int:
        """Blocks with no holder whose content can still be found."""
        return self._num_cached

    @property
    def num_free(self) -> int:
        """Blocks with no holder and nothing to find."""
        return self._num_listed - self._num_cached

    @property
    def num_held(self) -> int:
        return self.num_blocks - self._num_listed

    @property
    def first_listed(self) -> int:
        """The block that take() would hand out. Raises RuntimeError when all are held."""
        if not self._num_listed:
            raise RuntimeError("every block of the pool is held")
        return self._next[self.num_blocks]

    def ref_count(self, block: int) -> int:
        """Tables that hold the block."""
        return self._ref_counts[block]

    def is_listed(self, block: int) -> bool:
        return not self._ref_counts[block] and block not in self._pinned

    def is_shared(self, block: int) -> bool:
        return self._ref_counts[block] > 1

    def free_list(self) -> Iterator[int]:
        """The blocks of the free list, front to back."""
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            yield block
            block = self._next[block]

    # Holding and letting go

    def take(self) -> int:
        """Hand out the block at the front, with one holder.

        Raises RuntimeError when all blocks are held, or when the content of the front one can still be found:
        its index entry must go first, or a lookup would return a block that holds something else.
        """
        block = self.first_listed
        if self._findable[block]:
            raise RuntimeError(f"block {block} can still be found; remove its index entry before taking it")
        self._unlink(block)
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder. The block may be held or on the free list (a cached block found again)."""
        if self.is_listed(block):
            self._unlink(block)
        self._ref_counts[block] += 1

    def release(self, block: int) -> None:
        """Drop a holder; after the last the block goes back to the list.

        Raises RuntimeError if nobody holds it.
        """
        count = self._ref_counts[block]
        if count < 1:
            raise RuntimeError(f"block {block} was released more often than it was held")
        self._ref_counts[block] = count - 1
        if count == 1 and block not in self._pinned:
            self._list(block)

    def pin(self, block: int) -> None:
        """Keep a held block off the free list until unpin_all, even when its last holder lets go."""
        if not self._ref_counts[block]:
            raise RuntimeError(f"block {block} has no holder and cannot be pinned")
        self._pinned.add(block)

    def unpin_all(self) -> None:
        pinned, self._pinned = self._pinned, set()
        for block in pinned:
            if not self._ref_counts[block]:
                self._list(block)

    def touch(self, block: int) -> None:
        """Make a listed block the last of its kind to be handed out. Does nothing to a held one."""
        if self.is_listed(block):
            self._unlink(block)
            self._list(block)

    # Findable or not

    def is_findable(self, block: int) -> bool:
        return self._findable[block]

    def mark_findable(self, block: int) -> None:
        """The prefix index has an entry for this block. Only what is held can become findable."""
        if self.is_listed(block):
            raise RuntimeError(f"block {block} has no holder: its content may not be published")
        self._findable[block] = True

    def mark_unfindable(self, block: int) -> None:
        """The index entry is gone. A listed block moves to the front: nothing is lost by handing it out."""
        if not self._findable[block]:
            raise RuntimeError(f"block {block} is not findable")
        is_listed = self.is_listed(block)
        if is_listed:
            self._unlink(block)
        self._findable[block] = False
        if is_listed:
            self._list(block)

    # The list

    def _list(self, block: int) -> None:
        end = self.num_blocks
        if self._findable[block]:
            before, after = self._prev[end], end
            self._num_cached += 1
        else:
            before, after = end, self._next[end]
        self._prev[block], self._next[block] = before, after
        self._next[before] = self._prev[after] = block
        self._num_listed += 1

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self._num_listed -= 1
        if self._findable[block]:
            self._num_cached -= 1

    def check_integrity(self) -> None:
        """Raises AssertionError unless free + cached + held = all and the list is whole. O(num_blocks)."""
        listed = list(self.free_list())
        assert len(set(listed)) == len(listed) == self._num_listed, "the free list is broken"
        assert set(listed) == {b for b in range(self.num_blocks) if self.is_listed(b)}, "a block is lost"
        assert all(count >= 0 for count in self._ref_counts), "a reference count is negative"
        flags = [self._findable[block] for block in listed]
        assert flags == sorted(flags), "an unfindable block stands behind a findable one"
        assert sum(flags) == self._num_cached, "cached blocks are miscounted"
        block = self._prev[self.num_blocks]
        backwards = []
        while block != self.num_blocks:
            backwards.append(block)
            block = self._prev[block]
        assert backwards == listed[::-1], "the free list reads differently backwards"
