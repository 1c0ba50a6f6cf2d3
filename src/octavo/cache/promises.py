"""Room that is kept for sequences to their end, so that others cannot take it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoomToEnd:
    """What a promise is for: sequences of one prompt that each store end_len tokens at most."""

    end_len: int
    num_sequences: int = 1


@dataclass(slots=True, kw_only=True)
class Promise:
    """Blocks that nobody but its members may take. The forks of a request share one."""

    end_blocks: int
    """Blocks of one member at its end."""
    remaining: int
    """Blocks that the members may still take."""
    num_members: int = 1
    """Tables that draw on it."""
    num_seats: int = 0
    """Forks that will join."""

    def num_drawn(self, num_new: int, num_copies: int) -> int:
        """Blocks of a reservation that come out of the promise, the others are taken like everybody's.

        A promise to one member was not made for copies: those who share with it are younger and can be
        preempted.
        """
        return min(self.remaining, num_new + (num_copies if self.num_members > 1 else 0))


class PromiseLedger:
    """Keeps the total of what is promised."""

    def __init__(self) -> None:
        self.num_blocks = 0
        """Free or cached blocks kept for those to whom they are promised."""

    def make(self, end_blocks: int, num_blocks: int, num_seats: int) -> Promise:
        """Promise num_blocks to one table and to num_seats forks of it."""
        self.num_blocks += num_blocks
        return Promise(end_blocks=end_blocks, remaining=num_blocks, num_seats=num_seats)

    def draw(self, promise: Promise, num_blocks: int) -> None:
        """A member takes blocks; a negative number undoes it."""
        promise.remaining -= num_blocks
        self.num_blocks -= num_blocks

    def join(self, promise: Promise) -> bool:
        """A fork takes a seat, if there is one."""
        if not promise.num_seats:
            return False
        promise.num_seats -= 1
        promise.num_members += 1
        return True

    def undo_join(self, promise: Promise) -> None:
        """The fork is undone: its share stays with the others. With nobody left nothing is kept."""
        promise.num_members -= 1
        promise.num_seats += 1
        if not promise.num_members:
            self.draw(promise, promise.remaining)

    def leave(self, promise: Promise, num_blocks: int, num_copies: int) -> None:
        """A member with num_blocks blocks ends and gives back what it no longer takes; the last gives back
        all.

        num_copies is 1 if it would have had to copy its partial block, which others still share.
        """
        promise.num_members -= 1
        share = promise.remaining
        if promise.num_members:
            share = min(share, promise.end_blocks - num_blocks + num_copies)
        self.draw(promise, share)
