"""A sequence as the scheduler holds it, with its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.cache.block_table import BlockTable
from octavo.request import Sequence


@dataclass(slots=True, eq=False)
class Entry:
    """A sequence that waits (no table) or runs (table)."""

    seq: Sequence
    end_len: int
    """Tokens, of prompt and answer, at which it ends with "length"."""
    siblings: list[Entry] = field(default_factory=list)
    """The request's other sequences, to be forked from this one when it first closes its gap."""
    table: BlockTable | None = None
    was_admitted: bool = False
    """Whether a step that admitted it was committed."""

    @property
    def num_seats(self) -> int:
        """Places that it takes under max_num_seqs, its forks to come included."""
        return 1 + len(self.siblings)


def check_queues(
    waiting: list[Entry], running: list[Entry], by_id: dict[int, Entry], by_request: dict[str, list[Entry]]
) -> None:
    """Raises AssertionError unless every living sequence stands in its one place, ordered by age."""
    for queue in (waiting, running):
        ids = [entry.seq.seq_id for entry in queue]
        assert ids == sorted(set(ids)), "a queue is out of order"
    assert all(entry.table is None for entry in waiting), "a waiting sequence holds blocks"
    assert all(entry.table is not None for entry in running), "a running sequence holds no blocks"
    placed = [member for entry in (*waiting, *running) for member in (entry, *entry.siblings)]
    assert sorted(member.seq.seq_id for member in placed) == sorted(by_id), "a sequence is lost"
    grouped = [entry.seq.seq_id for group in by_request.values() for entry in group]
    assert sorted(grouped) == sorted(by_id), "a request does not know its sequences"
