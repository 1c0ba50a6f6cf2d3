"""What one step did to the cache, so that it can be undone."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.batch import BlockCopy
from octavo.cache.block_table import BlockTable
from octavo.cache.prefix_tree import PrefixLevel, PrefixNode


@dataclass(slots=True)
class TableMark:
    """A table as it was before the step first changed it."""

    table: BlockTable
    num_blocks: int
    num_tokens: int
    num_published: int
    level: PrefixLevel | None
    replaced: list[tuple[int, int]] = field(default_factory=list)
    """(logical block, its physical block before copy-on-write)"""
    num_promised: int = 0
    """Blocks taken from the table's promise."""


@dataclass(slots=True)
class StepJournal:
    """Kept from begin_step to commit_step or rollback_step."""

    copies: list[BlockCopy] = field(default_factory=list)
    published: list[PrefixNode] = field(default_factory=list)
    """Index entries whose content the step is still to compute."""
    opened: list[BlockTable] = field(default_factory=list)
    forked: list[BlockTable] = field(default_factory=list)
    fork_parties: set[BlockTable] = field(default_factory=set)
    """Forks of this step and what they were forked from: their shared part is not computed yet."""
    marks: dict[int, TableMark] = field(default_factory=dict)
    """By id() of the table, which the mark keeps alive."""

    def mark(self, table: BlockTable) -> TableMark:
        """Remember the table, once."""
        mark = self.marks.get(id(table))
        if mark is None:
            mark = TableMark(table, len(table.blocks), table.num_tokens, table.num_published, table.level)
            self.marks[id(table)] = mark
        return mark
