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
