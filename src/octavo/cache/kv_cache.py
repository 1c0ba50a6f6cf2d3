"""The KV cache as the scheduler sees it: who holds which block, what can be found again, what is promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from octavo.batch import BlockCopy
from octavo.cache.block_pool import BlockPool
from octavo.cache.block_table import BlockTable
from octavo.cache.journal import StepJournal, TableMark
from octavo.cache.prefix_tree import PrefixLevel, PrefixMatch, PrefixNode, PrefixTree, TokenIds
from octavo.cache.promises import PromiseLedger, RoomToEnd


class KVCacheManager:
    """Blocks, tables, the prefix tree and promises, kept in step with each other.

    Tables change inside a step only: begin_step, then reserve, publish and fork, then commit_step when the
    step's K and V have been written, or rollback_step when they have not. release may be called at any
    moment. Inside a step the executor first makes the copies, in list order, and then writes every token's K
    and V of a layer before it attends. Two rules follow:

    - a full block is published as soon as the step that fills it is scheduled, and may be shared in that
    step;
    - only what an earlier step computed may be copied, because copies come before the step's writes.

    Not safe for two threads at once.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self.num_evictions = 0
        """Cached blocks handed out for new content."""
        self.num_copied_blocks = 0
        """Copy-on-write and partial-match copies of committed steps."""
        self._pool = BlockPool(num_blocks)
        self._tree = PrefixTree(block_size)
        self._tables: set[BlockTable] = set()
        self._promises = PromiseLedger()
        self._journal: StepJournal | None = None

    # Questions: nothing below changes anything until "The step"

    @property
    def num_free_blocks(self) -> int:
        """Blocks with no holder and nothing to find."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks with no holder whose content can still be found."""
        return self._pool.num_cached

    @property
    def num_held_blocks(self) -> int:
        return self._pool.num_held

    @property
    def num_promised_blocks(self) -> int:
        """Free or cached blocks kept for the sequences to which they are promised."""
        return self._promises.num_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks that a sequence without a promise can take: free and cached ones, less those promised."""
        return self._pool.num_listed - self._promises.num_blocks

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that num_tokens tokens fill."""
        return -(-num_tokens // self.block_size)

    def num_blocks_to_end(self, num_tokens: int, room: RoomToEnd) -> int:
        """Blocks that sequences which share their first num_tokens tokens hold at their end.

        They share the full blocks; each ends with a private copy of the partial one, if it grows at all.
        """
        if room.end_len <= num_tokens:
            return self.num_blocks_of(num_tokens)
        num_shared = num_tokens // self.block_size
        return num_shared + room.num_sequences * (self.num_blocks_of(room.end_len) - num_shared)

    def match(self, token_ids: Sequence[int], namespace: Hashable = ()) -> PrefixMatch:
        """The longest known prefix, short of the last token, which is always computed.

        Changes nothing; valid until the next change.
        """
        if not self.enable_prefix_caching:
            return PrefixMatch(namespace)
        return self._tree.match(namespace, token_ids, len(token_ids) - 1)

    # The step

    def begin_step(self) -> None:
        if self._journal is not None:
            raise RuntimeError("commit or roll back the step before")
        self._journal = StepJournal()

    @property
    def copies(self) -> tuple[BlockCopy, ...]:
        """Copies that the step in progress starts with, in order."""
        return tuple(self._open_journal().copies)

    def commit_step(self) -> None:
        """The step's K and V are in place: parts of what it published may now be copied."""
        journal = self._open_journal()
        self._journal = None
        self.num_copied_blocks += len(journal.copies)
        for node in journal.published:
            if node.is_attached:
                self._tree.settle(node)
        self._pool.unpin_all()

    def rollback_step(self) -> None:
        """Undo the step: index entries, tables and promises are as before it. Evicted entries stay evicted.

        Tables opened or forked in the step are released; those released since stay so.
        """
        journal = self._open_journal()
        for node in reversed(journal.published):
            if node.is_attached:
                self._forget(node)
        for table in reversed(journal.forked):
            if not table.is_released:
                self._undo_fork(table)
        for table in reversed(journal.opened):
            if not table.is_released:
                self.release(table)
        for mark in reversed(journal.marks.values()):
            if not mark.table.is_released:
                self._undo_changes(mark)
        self._pool.unpin_all()
        self._journal = None

    # Reservations: everything, or no change at all

    def reserve_prompt(
        self, match: PrefixMatch, num_tokens: int, *, num_spare_blocks: int = 0, room: RoomToEnd | None = None
    ) -> BlockTable | None:
        """Open a table for num_tokens known tokens: share the match's blocks, take the others, note the copy.

        num_spare_blocks must stay available beyond that. With `room`, blocks are promised to the sequence's
        end, and to that of the forks to come. Returns None, with nothing changed, when there is not enough
        room.
        """
        journal = self._open_journal()
        num_blocks = self.num_blocks_of(num_tokens)
        num_to_end = num_blocks if room is None else self.num_blocks_to_end(num_tokens, room)
        # Hits on the free list are not available once they are held: they count as hits or as room, not both.
        num_listed_hits = sum(map(self._pool.is_listed, match.blocks))
        num_needed = num_to_end - len(match.blocks) + num_listed_hits + num_spare_blocks
        if num_needed > self.num_available_blocks:
            return None
        table = BlockTable(self.block_size, match.namespace)
        self._tables.add(table)
        journal.opened.append(table)
        for block in match.blocks:
            self._pool.share(block)
            table.blocks.append(block)
        table.num_published, table.level = len(match.blocks), match.level
        if match.source is not None:
            self._copy_part(table, match.source)
        while len(table.blocks) < num_blocks:
            table.blocks.append(self._take_block())
        table.num_tokens = num_tokens
        if room is not None:
            end_blocks = self.num_blocks_of(room.end_len)
            table.promise = self._promises.make(end_blocks, num_to_end - num_blocks, room.num_sequences - 1)
        return table

    def reserve(self, table: BlockTable, start: int, end: int) -> bool:
        """Make positions [start, end) writable: take missing blocks, replace shared ones by copies.

        A table with a promise draws on it first. Returns False, with nothing changed, when there is no room.
        Raises RuntimeError if a copy would need what this step is still to compute.
        """
        journal = self._open_journal()
        num_new = max(self.num_blocks_of(end) - len(table.blocks), 0)
        shared = table.shared_blocks(start, end, self._pool)
        promise = table.promise
        num_drawn = promise.num_drawn(num_new, len(shared)) if promise is not None else 0
        if num_new + len(shared) - num_drawn > self.num_available_blocks:
            return False
        if shared and table in journal.fork_parties:
            raise RuntimeError("a table forked in this step cannot be written in it")
        mark = journal.mark(table)
        table.num_tokens = max(table.num_tokens, end)
        for index in shared:
            source, target = table.replace_shared(index, self._pool, self._take_block)
            mark.replaced.append((index, source))
            journal.copies.append(BlockCopy(source, target))
        self._take_blocks(table, num_new, num_drawn)
        return True

    def reserve_ahead(self, ends: Mapping[BlockTable, int]) -> bool:
        """Take the blocks that the positions up to each table's end will need, after those reserved so far.

        Returns False, with nothing changed, when there is not enough room for all. Forks share none of them.
        """
        num_needed = 0
        takes: list[tuple[BlockTable, int, int]] = []
        drawn = Counter[int]()  # by promise, which several tables may share
        for table, end in ends.items():
            num_new, num_drawn = max(self.num_blocks_of(end) - len(table.blocks), 0), 0
            if table.promise is not None:
                num_drawn = min(num_new, table.promise.remaining - drawn[id(table.promise)])
                drawn[id(table.promise)] += num_drawn
            num_needed += num_new - num_drawn
            takes.append((table, num_new, num_drawn))
        if num_needed > self.num_available_blocks:
            return False
        for table, num_new, num_drawn in takes:
            self._take_blocks(table, num_new, num_drawn)
        return True

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table of the same blocks, the partial one too. Both are writable from the next step on."""
        journal = self._open_journal()
        twin = BlockTable(self.block_size, table.namespace)
        self._tables.add(twin)
        journal.forked.append(twin)
        journal.fork_parties |= {table, twin}
        twin.share_all_of(table, self._pool)
        if table.promise is not None and self._promises.join(table.promise):
            twin.promise = table.promise
        return twin

    def release(self, table: BlockTable) -> None:
        """Give back all blocks and what was promised. Findable blocks stay cached until they are needed.

        Raises RuntimeError the second time.
        """
        self._leave_promise(table)
        table.release(self._pool)
        self._tables.remove(table)

    # Publishing

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> None:
        """Index the full blocks of token_ids[:num_tokens], computed or to be computed in the step in
        progress.

        One entry a content: a block with a twin in the tree stays with its owner, unmerged and unfindable.
        """
        num_full = num_tokens // self.block_size
        if not self.enable_prefix_caching or num_full < table.num_published:
            return
        is_in_tree = table.level is None or table.level.is_attached
        if num_full == table.num_published and is_in_tree:
            return
        if self._journal is not None:
            self._journal.mark(table)
        self._walk(table, token_ids, num_full)

    def publish_tail(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Index the full blocks of token_ids[:num_computed], and the partial one, to be copied."""
        self.publish(table, token_ids, num_computed)
        num_full = num_computed // self.block_size
        tail = tuple(token_ids[num_full * self.block_size : num_computed])
        if not self.enable_prefix_caching or not tail or num_full < table.num_published:
            return
        block = table.blocks[num_full]
        known = self._tree.node_of(block)
        if known is not None and len(known.token_ids) >= len(tail):
            return
        level = self._walk(table, token_ids, num_full)
        if tail not in level.children and not self._tree.has_computed(level, tail):
            self._index(level, tail, block)

    # Checks

    def check_integrity(self) -> None:
        """Raises AssertionError unless pool, tables, tree and promises agree. O(everything)."""
        self._pool.check_integrity()
        self._tree.check_integrity()
        counts = [0] * self.num_blocks
        for table in self._tables:
            for block in table.blocks:
                counts[block] += 1
            assert not table.is_released, "a released table is still known"
            assert table.num_tokens <= len(table.blocks) * self.block_size, "a table lacks slots"
        assert counts == [self._pool.ref_count(b) for b in range(self.num_blocks)], (
            "counts are not the tables'"
        )
        for block in range(self.num_blocks):
            is_indexed = self._tree.node_of(block) is not None
            assert is_indexed == self._pool.is_findable(block), f"block {block}: index and pool disagree"
        promises = {id(table.promise): table.promise for table in self._tables if table.promise}
        num_promised = self._promises.num_blocks
        assert num_promised == sum(p.remaining for p in promises.values()), "promises do not add up"
        assert 0 <= num_promised <= self._pool.num_listed, "more is promised than is there"

    def check_contents(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Raises AssertionError if a block of the table is indexed under other tokens than the sequence's."""
        for index, block in enumerate(table.blocks):
            node = self._tree.node_of(block)
            if node is None:
                continue
            start = index * self.block_size
            expected = tuple(token_ids[start : start + len(node.token_ids)])
            assert node.token_ids == expected, f"block {block} is indexed under tokens that it does not hold"

    # Inside

    def _open_journal(self) -> StepJournal:
        if self._journal is None:
            raise RuntimeError("no step is in progress: call begin_step first")
        return self._journal

    def _take_blocks(self, table: BlockTable, num_blocks: int, num_promised: int) -> None:
        """Add blocks to the end of a table; num_promised blocks, of these or others, are from its promise."""
        mark = self._open_journal().mark(table)
        if table.promise is not None:
            self._promises.draw(table.promise, num_promised)
            mark.num_promised += num_promised
        for _ in range(num_blocks):
            table.blocks.append(self._take_block())

    def _take_block(self) -> int:
        """The next block of the free list. If it is cached it is evicted: its index entry goes first."""
        node = self._tree.node_of(self._pool.first_listed)
        if node is not None:
            self._forget(node)
            self.num_evictions += 1
        return self._pool.take()

    def _forget(self, node: PrefixNode) -> None:
        for block in self._tree.remove(node):
            self._pool.mark_unfindable(block)

    def _copy_part(self, table: BlockTable, source: int) -> None:
        """Take a private block that starts as a copy of `source`.

        The source moves to the back of the free list. If it is handed out all the same, it is the last block
        there is: then it is used in place. Handed out later in the step it may be overwritten: copies come
        first.
        """
        self._pool.touch(source)
        target = self._take_block()
        table.blocks.append(target)
        if target != source:
            self._open_journal().copies.append(BlockCopy(source, target))

    def _leave_promise(self, table: BlockTable) -> None:
        promise, table.promise = table.promise, None
        if promise is not None:
            last, offset = divmod(table.num_tokens, self.block_size)
            num_copies = int(offset > 0 and self._pool.is_shared(table.blocks[last]))
            self._promises.leave(promise, len(table.blocks), num_copies)

    def _walk(self, table: BlockTable, token_ids: Sequence[int], num_full: int) -> PrefixLevel:
        """Index the table's full blocks up to num_full and return the level below them.

        Starts where the table left off; from the root if that node has been evicted since (a twin's block can
        be, while this table lives on).
        """
        level = table.level
        if level is None or not level.is_attached:
            level, table.num_published = self._tree.root(table.namespace), 0
        for index in range(table.num_published, num_full):
            start = index * self.block_size
            key = tuple(token_ids[start : start + self.block_size])
            child = level.children.get(key)
            level = self._index(level, key, table.blocks[index]) if child is None else child
        table.num_published, table.level = num_full, level
        return level

    def _index(self, level: PrefixLevel, token_ids: TokenIds, block: int) -> PrefixNode:
        node = self._tree.insert(level, token_ids, block)
        self._pool.mark_findable(block)
        if self._journal is None:
            self._tree.settle(node)
        else:
            self._journal.published.append(node)
        return node

    def _undo_fork(self, twin: BlockTable) -> None:
        if twin.promise is not None:
            self._promises.undo_join(twin.promise)
            twin.promise = None
        twin.release(self._pool)
        self._tables.remove(twin)

    def _undo_changes(self, mark: TableMark) -> None:
        table = mark.table
        while len(table.blocks) > mark.num_blocks:
            self._pool.release(table.blocks.pop())
        for index, source in reversed(mark.replaced):
            self._pool.share(source)
            self._pool.release(table.blocks[index])
            table.blocks[index] = source
        table.num_tokens, table.num_published, table.level = mark.num_tokens, mark.num_published, mark.level
        if table.promise is not None:
            self._promises.draw(table.promise, -mark.num_promised)
