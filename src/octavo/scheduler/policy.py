"""Who goes first, who has to go, how much at a time: small pure functions."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from octavo.scheduler.entry import Entry

ROW_TILE = 16
"""Rows that the kernels compute together: chunks are multiples of it where they can be."""


def age(entry: Entry) -> int:
    """Smaller is older. Ids are given at arrival, a request's n sequences have neighbouring ones."""
    return entry.seq.seq_id


def insert_by_age(queue: list[Entry], entry: Entry) -> None:
    """Put an entry into its place of a queue that is ordered by age.

    A preempted sequence is older than all that were never admitted, so it comes to the front of the queue.
    """
    insort(queue, entry, key=age)


def pick_victim(running: Sequence[Entry], needy: Entry) -> Entry:
    """Who is preempted so that `needy` can grow: the youngest without a promise, in the end `needy` itself.

    `running` is ordered by age. Raises RuntimeError if that would be a sequence which was promised its room.
    """
    for entry in reversed(running):
        if entry is needy:
            break
        if entry.table is not None and entry.table.promise is None:
            return entry
    if needy.table is not None and needy.table.promise is not None:
        raise RuntimeError(f"sequence {needy.seq.seq_id} did not get the room that it was promised")
    return needy


def chunk_len(gap: int, budget: int) -> int:
    """Tokens of a gap to compute now: what the budget allows, in whole row tiles when it has to be cut."""
    if gap <= budget:
        return gap
    return budget - budget % ROW_TILE if budget >= ROW_TILE else budget
