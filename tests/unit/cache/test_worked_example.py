"""The example of docs/kv-cache.md, in exact block ids: block size 16, a pool of 64."""

from __future__ import annotations

import pytest

from octavo.batch import BlockCopy
from octavo.cache.block_table import BlockTable
from octavo.cache.kv_cache import KVCacheManager
from octavo.cache.prefix_tree import PrefixMatch
from support.paged_memory import PagedMemory, chain


def cache_that_hands_out(*first: int) -> KVCacheManager:
    """A pool of 64 whose free list begins with these ids: a released unfindable block goes to the front."""
    cache = KVCacheManager(64, 16)
    pool = cache._pool
    blocks = [pool.take() for _ in range(64)]
    order = [*first, *(block for block in blocks if block not in first)]
    for block in reversed(order):
        pool.release(block)
    assert list(pool.free_list()) == order
    cache.begin_step()
    return cache


def open_table(cache: KVCacheManager, num_tokens: int) -> BlockTable:
    table = cache.reserve_prompt(PrefixMatch(()), num_tokens)
    assert table is not None
    return table


@pytest.fixture
def cache() -> KVCacheManager:
    return cache_that_hands_out(3, 7, 0, 5, 9, 4, 11)


def test_three_requests_need_six_blocks(cache: KVCacheManager) -> None:
    tables = [open_table(cache, num_tokens) for num_tokens in (25, 47, 12)]
    assert [table.blocks for table in tables] == [[3, 7], [0, 5, 9], [4]]
    assert cache.num_free_blocks == 58
    num_slots = 16 * sum(len(table.blocks) for table in tables)
    assert (num_slots, num_slots - (25 + 47 + 12)) == (96, 12)


def test_address_translation(cache: KVCacheManager) -> None:
    _, second, _ = (open_table(cache, num_tokens) for num_tokens in (25, 47, 12))
    assert divmod(second.slot(37), 16) == (9, 5)
    with pytest.raises(IndexError):
        second.slot(48)


@pytest.mark.parametrize(("num_tokens", "blocks"), [(10, [0, 5, 9, 11]), (20, [0, 5, 9, 11, 1])])
def test_growth_moves_nothing(cache: KVCacheManager, num_tokens: int, blocks: list[int]) -> None:
    _, second, _ = (open_table(cache, num_tokens) for num_tokens in (25, 47, 12))
    assert cache.reserve(second, 47, 47 + num_tokens)
    assert second.blocks == blocks
    assert cache.copies == ()


def test_a_prefix_of_800_tokens_is_exactly_fifty_blocks() -> None:
    cache = KVCacheManager(64, 16)
    prefix = [token % 97 for token in range(800)]
    cache.begin_step()
    first = open_table(cache, 801)
    cache.publish(first, [*prefix, 1], 801)
    cache.commit_step()

    cache.begin_step()
    match = cache.match([*prefix, 2])
    second = cache.reserve_prompt(match, 801)
    assert second is not None
    assert match.blocks == tuple(first.blocks[:50])
    assert second.blocks == [*first.blocks[:50], 51]
    assert cache.copies == ()
    assert cache.num_held_blocks == 52


def test_copy_on_write_of_a_shared_partial_block() -> None:
    """A and B share P0 (16 tokens) and P1 (8). B's next write goes to P2, a copy; A still reads P1."""
    cache, memory = KVCacheManager(64, 16), PagedMemory(64, 16)
    tokens = list(range(24))
    cache.begin_step()
    a = open_table(cache, 24)
    b = cache.fork(a)
    memory.write(a.blocks, 0, tokens)
    cache.commit_step()
    assert a.blocks == b.blocks == [0, 1]
    assert [cache._pool.ref_count(block) for block in (0, 1)] == [2, 2]

    cache.begin_step()
    assert cache.reserve(b, 24, 25)
    assert b.blocks == [0, 2]
    assert cache.copies == (BlockCopy(1, 2),)
    assert [cache._pool.ref_count(block) for block in (0, 1, 2)] == [2, 1, 1]
    memory.copy(cache.copies)
    memory.write(b.blocks, 24, [77])
    cache.commit_step()

    assert memory.read(b.blocks, 25) == chain([*tokens, 77])
    assert memory.read(a.blocks, 24) == chain(tokens)
    cache.begin_step()
    assert cache.reserve(a, 24, 25)
    assert a.blocks == [0, 1], "the last holder writes in place"
    assert cache.copies == ()
    cache.check_integrity()
