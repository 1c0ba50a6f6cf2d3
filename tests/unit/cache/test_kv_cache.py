"""Pool, tables, tree and promises together: all or nothing, publish and roll back, copies, eviction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo.batch import BlockCopy
from octavo.cache.block_table import BlockTable
from octavo.cache.kv_cache import KVCacheManager
from octavo.cache.promises import RoomToEnd
from support.paged_memory import PagedMemory, chain

TEXT = list(range(100, 164))


def state(cache: KVCacheManager) -> tuple[object, ...]:
    pool = cache._pool
    counts = [pool.ref_count(block) for block in range(cache.num_blocks)]
    return list(pool.free_list()), counts, cache.num_promised_blocks, len(cache._tree)


def open_table(cache: KVCacheManager, prompt: Sequence[int], **options: object) -> BlockTable:
    table = cache.reserve_prompt(cache.match(prompt), len(prompt), **options)  # type: ignore[arg-type]
    assert table is not None
    cache.publish(table, prompt, len(prompt))
    return table


def remember(cache: KVCacheManager, prompt: Sequence[int]) -> list[int]:
    """A request that comes, is computed, and ends. Returns the blocks it had."""
    cache.begin_step()
    table = open_table(cache, prompt)
    cache.commit_step()
    blocks = table.blocks
    cache.publish_tail(table, prompt, len(prompt))
    cache.release(table)
    cache.check_integrity()
    return blocks


def test_a_chain_is_eaten_from_its_leaf() -> None:
    cache = KVCacheManager(4, 4)
    remember(cache, TEXT[:16])
    cache.begin_step()
    assert open_table(cache, [1, 2]).blocks == [3]
    assert cache.match(TEXT[:17]).blocks == (0, 1, 2)
    assert open_table(cache, [3, 4, 5, 6, 7]).blocks == [2, 1]
    assert cache.match(TEXT[:17]).blocks == (0,)
    assert cache.num_evictions == 3
    cache.check_integrity()


def test_what_was_used_latest_is_evicted_last() -> None:
    cache = KVCacheManager(4, 4)
    first, second = remember(cache, TEXT[:8]), remember(cache, TEXT[20:28])
    remember(cache, [*TEXT[:7], 0])  # uses the first again: its root block, and a copy of a part of its leaf
    assert first[0] == 0
    cache.begin_step()
    open_table(cache, [1])
    assert cache.match(TEXT[:9]).blocks[:1] == (first[0],)
    assert cache.match(TEXT[20:29]).blocks != tuple(second)


def test_hits_on_the_free_list_are_not_room_as_well() -> None:
    """Six blocks, four cached. Those four and three more are refused a thousand times, with no trace."""
    cache = KVCacheManager(6, 4)
    remember(cache, TEXT[:16])
    assert (cache.num_free_blocks, cache.num_cached_blocks) == (2, 4)
    cache.begin_step()
    before = state(cache)
    for _ in range(1000):
        match = cache.match(TEXT[:28])
        assert match.blocks == (0, 1, 2, 3)
        assert cache.reserve_prompt(match, 28) is None
    assert state(cache) == before
    assert open_table(cache, TEXT[:24]).blocks == [0, 1, 2, 3, 4, 5]
    cache.check_integrity()


def test_siblings_share_in_the_step_that_computes() -> None:
    cache = KVCacheManager(8, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:9])
    b = open_table(cache, [*TEXT[:8], 0])
    assert a.blocks == [0, 1, 2]
    assert b.blocks == [0, 1, 3]
    assert cache.copies == ()


def test_a_part_that_this_step_computes_is_not_copied() -> None:
    """Copies come before writes: the copy would carry what stood there before."""
    cache = KVCacheManager(8, 4)
    cache.begin_step()
    open_table(cache, TEXT[:5])
    assert cache.match([*TEXT[:3], 0, 0]).num_tokens == 0
    cache.commit_step()
    match = cache.match([*TEXT[:3], 0, 0])
    assert (match.source, match.num_copied_tokens) == (0, 3)


def test_a_part_is_copied_into_a_private_block() -> None:
    cache, memory = KVCacheManager(8, 4), PagedMemory(8, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:8])
    memory.write(a.blocks, 0, TEXT[:8])
    cache.commit_step()
    cache.begin_step()
    prompt = [*TEXT[:6], 0, 0, 0]
    b = open_table(cache, prompt)
    assert b.blocks == [0, 2, 3]
    assert cache.copies == (BlockCopy(1, 2),)
    memory.copy(cache.copies)
    memory.write(b.blocks, 6, prompt[6:])
    cache.commit_step()
    assert memory.read(b.blocks, 9) == chain(prompt)
    assert memory.read(a.blocks, 8) == chain(TEXT[:8])
    assert cache.num_copied_blocks == 1


def test_the_last_block_of_the_pool_is_copied_onto_itself_by_using_it() -> None:
    cache, memory = KVCacheManager(2, 4), PagedMemory(2, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:8])
    memory.write(a.blocks, 0, TEXT[:8])
    cache.commit_step()
    cache.release(a)
    cache.begin_step()
    b = open_table(cache, [*TEXT[:6], 0])
    assert b.blocks == [0, 1]
    assert cache.copies == ()
    memory.write(b.blocks, 6, [0])
    cache.commit_step()
    assert memory.read(b.blocks, 7) == chain([*TEXT[:6], 0])
    cache.check_integrity()


def test_a_source_may_be_handed_out_later_in_the_step() -> None:
    """Copies run first and in order, so the new owner's writes come after."""
    cache, memory = KVCacheManager(3, 4), PagedMemory(3, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:4])
    memory.write(a.blocks, 0, TEXT[:4])
    cache.commit_step()
    cache.release(a)
    cache.begin_step()
    b = open_table(cache, [*TEXT[:2], 0, 0])
    c = open_table(cache, [7, 7, 7, 7, 7])
    assert cache.copies == (BlockCopy(0, 1),)
    assert c.blocks == [2, 0], "the source is the last to go, but it goes"
    memory.copy(cache.copies)
    memory.write(b.blocks, 2, [0, 0])
    memory.write(c.blocks, 0, [7, 7, 7, 7, 7])
    cache.commit_step()
    assert memory.read(b.blocks, 4) == chain([*TEXT[:2], 0, 0])
    assert memory.read(c.blocks, 5) == chain([7] * 5)


def test_the_partial_block_of_an_answer_is_found_by_the_next_turn() -> None:
    cache = KVCacheManager(8, 4)
    remember(cache, TEXT[:10])
    match = cache.match(TEXT[:13])
    assert (match.blocks, match.source, match.num_tokens) == ((0, 1), 2, 10)


def test_a_twin_stays_with_its_owner() -> None:
    """Two sequences that grow into the same text: one entry, both keep their blocks."""
    cache = KVCacheManager(8, 4)
    cache.begin_step()
    a, b = open_table(cache, TEXT[:3]), open_table(cache, TEXT[:3])
    cache.commit_step()
    cache.begin_step()
    for table in (a, b):
        assert cache.reserve(table, 3, 4)
        cache.publish(table, TEXT[:4], 4)
    cache.commit_step()
    assert (a.blocks, b.blocks) == ([0], [1])
    assert cache.match(TEXT[:5]).blocks == (0,)
    cache.release(a)
    cache.release(b)
    assert next(cache._pool.free_list()) == 1, "the twin cannot be found and goes first"
    assert cache.num_cached_blocks == 1


def test_publishing_goes_on_after_the_entry_above_was_evicted() -> None:
    """B grows below A's twin; A's block goes; B enters all its blocks again."""
    cache = KVCacheManager(5, 2)
    cache.begin_step()
    a, b = open_table(cache, TEXT[:1]), open_table(cache, TEXT[:1])
    cache.commit_step()
    cache.begin_step()
    for table in (a, b):
        assert cache.reserve(table, 1, 2)
        cache.publish(table, TEXT[:2], 2)
    assert cache.reserve(b, 2, 4)
    cache.publish(b, TEXT[:4], 4)
    cache.commit_step()
    cache.release(a)
    cache.begin_step()
    open_table(cache, [1, 2, 3])
    open_table(cache, [4])  # takes A's block, and B's second entry hung below it
    assert cache.match(TEXT[:5]).num_tokens == 0
    cache.commit_step()
    cache.check_integrity()
    cache.publish_tail(b, TEXT[:4], 4)
    assert cache.match(TEXT[:5]).blocks == tuple(b.blocks)
    cache.check_integrity()


def test_two_forks_copy_and_the_last_writes_in_place() -> None:
    cache, memory = KVCacheManager(8, 4), PagedMemory(8, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:6])
    b, c = cache.fork(a), cache.fork(a)
    with pytest.raises(RuntimeError, match="forked in this step"):
        cache.reserve(b, 6, 7)
    memory.write(a.blocks, 0, TEXT[:6])
    cache.commit_step()
    cache.begin_step()
    for table in (a, b, c):
        assert cache.reserve(table, 6, 7)
    assert [a.blocks, b.blocks, c.blocks] == [[0, 2], [0, 3], [0, 1]]
    assert cache.copies == (BlockCopy(1, 2), BlockCopy(1, 3))
    memory.copy(cache.copies)
    for token, table in enumerate((a, b, c)):
        memory.write(table.blocks, 6, [token])
    cache.commit_step()
    for token, table in enumerate((a, b, c)):
        assert memory.read(table.blocks, 7) == chain([*TEXT[:6], token])
    cache.check_integrity()


def test_rollback_takes_everything_back() -> None:
    cache = KVCacheManager(8, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:6])
    cache.commit_step()
    cache.begin_step()
    twin = cache.fork(a)
    cache.commit_step()
    before, tables = state(cache), (list(a.blocks), list(twin.blocks))

    cache.begin_step()
    assert cache.reserve(a, 6, 9)
    cache.publish(a, TEXT[:9], 9)
    sharer = open_table(cache, [*TEXT[:8], 0])
    assert sharer.blocks[:2] == a.blocks[:2], "it matched what is computed in this step"
    cache.fork(sharer)
    cache.rollback_step()

    assert (a.blocks, twin.blocks) == tables
    assert state(cache) == before
    assert sharer.is_released
    assert cache.match([*TEXT[:8], 0]).blocks == (0,), "nothing uncomputed can be found"
    cache.check_integrity()

    cache.begin_step()
    assert cache.reserve(a, 6, 9)
    assert cache.copies == (BlockCopy(1, a.blocks[1]),), "the copy is made again"


def test_rollback_returns_to_a_copy_source_that_everyone_else_left() -> None:
    cache = KVCacheManager(4, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:6])
    twin = cache.fork(a)
    cache.commit_step()
    cache.begin_step()
    assert cache.reserve(a, 6, 7)
    cache.release(twin)
    grabber = open_table(cache, [1, 2, 3, 4])
    assert cache.num_available_blocks == 0
    assert 1 not in grabber.blocks, "the source is not handed out in the step that may return to it"
    cache.rollback_step()
    assert a.blocks == [0, 1]
    cache.check_integrity()


def test_a_sequence_that_ends_in_flight_leaves_nothing_uncomputed_behind() -> None:
    cache = KVCacheManager(8, 4)
    remember(cache, TEXT[:6])
    cache.begin_step()
    table = open_table(cache, [*TEXT[:6], 0, 0])
    assert len(cache.copies) == 1
    cache.publish_tail(table, [*TEXT[:6], 0, 0], 6)
    cache.release(table)
    cache.rollback_step()
    cache.check_integrity()
    assert cache.match([*TEXT[:6], 0, 0, 0]).source == 1
    assert cache.num_held_blocks == 0


def test_others_cannot_take_what_was_promised() -> None:
    cache = KVCacheManager(6, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:4], room=RoomToEnd(16))
    assert (cache.num_promised_blocks, cache.num_available_blocks) == (3, 2)
    before = state(cache)
    assert cache.reserve_prompt(cache.match([1] * 9), 9) is None
    assert state(cache) == before
    b = open_table(cache, [1] * 8)
    assert not cache.reserve(b, 8, 9)
    assert cache.reserve(a, 4, 16)
    assert (cache.num_promised_blocks, cache.num_available_blocks) == (0, 0)
    cache.rollback_step()
    assert cache.num_promised_blocks == 0
    cache.check_integrity()


def test_room_ahead_is_for_all_or_for_none() -> None:
    cache = KVCacheManager(8, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:4], room=RoomToEnd(12))
    b = open_table(cache, TEXT[20:28])
    assert (cache.num_promised_blocks, cache.num_available_blocks) == (2, 3)
    before = state(cache)
    assert not cache.reserve_ahead({a: 12, b: 21})
    assert state(cache) == before
    assert cache.reserve_ahead({a: 12, b: 20})
    assert ([len(a.blocks), len(b.blocks)], cache.num_promised_blocks) == ([3, 5], 0)
    cache.rollback_step()
    cache.check_integrity()
    assert cache.num_free_blocks == 8


def test_forks_share_a_promise_and_each_gets_to_its_end() -> None:
    """Three sequences of 6 tokens that grow to 12: one shared block, then two private ones each."""
    cache = KVCacheManager(7, 4)
    assert cache.num_blocks_to_end(6, RoomToEnd(12, 3)) == 7
    cache.begin_step()
    a = open_table(cache, TEXT[:6], room=RoomToEnd(12, 3))
    tables = [a, cache.fork(a), cache.fork(a)]
    cache.commit_step()
    assert (cache.num_promised_blocks, cache.num_available_blocks) == (5, 0)
    for position in range(6, 12):
        cache.begin_step()
        assert all(cache.reserve(table, position, position + 1) for table in tables)
        cache.commit_step()
        cache.check_integrity()
    assert cache.num_promised_blocks == 0
    for table in tables:
        cache.release(table)
    cache.check_integrity()


def test_a_fork_that_ends_early_gives_its_share_back() -> None:
    cache = KVCacheManager(7, 4)
    cache.begin_step()
    a = open_table(cache, TEXT[:6], room=RoomToEnd(12, 3))
    b, c = cache.fork(a), cache.fork(a)
    cache.commit_step()
    cache.release(b)
    assert cache.num_promised_blocks == 3, "two to grow, one copy: b would have grown by one and copied one"
    cache.begin_step()
    assert cache.reserve(a, 6, 7)
    cache.commit_step()
    cache.release(a)
    assert cache.num_promised_blocks == 1
    cache.release(c)
    assert cache.num_promised_blocks == 0
    cache.check_integrity()


def test_without_prefix_caching_nothing_is_found() -> None:
    cache = KVCacheManager(8, 4, enable_prefix_caching=False)
    remember(cache, TEXT[:10])
    assert cache.match(TEXT[:10]).num_tokens == 0
    assert (cache.num_free_blocks, cache.num_cached_blocks) == (8, 0)


def test_steps_are_opened_and_closed_once() -> None:
    cache = KVCacheManager(4, 4)
    with pytest.raises(RuntimeError, match="no step"):
        cache.reserve_prompt(cache.match([1, 2]), 2)
    cache.begin_step()
    with pytest.raises(RuntimeError, match="step before"):
        cache.begin_step()
    table = open_table(cache, [1, 2])
    cache.commit_step()
    with pytest.raises(RuntimeError):
        cache.commit_step()
    cache.release(table)
    with pytest.raises(RuntimeError, match="released before"):
        cache.release(table)
    with pytest.raises(ValueError, match="block_size"):
        KVCacheManager(4, 0)


def test_a_twin_that_ends_in_flight_is_not_entered_at_a_wrong_place() -> None:
    """B's block is full in this step and has a twin; what B had before is a tail of the level above."""
    cache = KVCacheManager(8, 4)
    cache.begin_step()
    tables = [open_table(cache, TEXT[:3]), open_table(cache, TEXT[:3])]
    cache.commit_step()
    cache.begin_step()
    for table in tables:
        assert cache.reserve(table, 3, 4)
        cache.publish(table, TEXT[:4], 4)
    cache.publish_tail(tables[1], TEXT[:4], 3)
    cache.release(tables[1])
    cache.commit_step()
    assert cache.match([*TEXT[:4], *TEXT[:3], 0]).num_tokens == 4
    cache.check_integrity()


def test_rollback_promises_again_what_the_step_had_taken() -> None:
    cache = KVCacheManager(6, 4)
    cache.begin_step()
    table = open_table(cache, TEXT[:4], room=RoomToEnd(16))
    cache.commit_step()
    cache.begin_step()
    assert cache.reserve(table, 4, 12)
    assert cache.num_promised_blocks == 1
    cache.rollback_step()
    assert cache.num_promised_blocks == 3
    cache.check_integrity()
