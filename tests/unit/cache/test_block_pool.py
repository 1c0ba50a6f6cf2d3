"""The free list in exact ids: who is handed out first, and what fails at once."""

from __future__ import annotations

import pytest

from octavo.cache.block_pool import BlockPool


def take_all(pool: BlockPool) -> list[int]:
    return [pool.take() for _ in range(pool.num_listed)]


def test_a_new_pool_hands_out_in_order() -> None:
    pool = BlockPool(4)
    assert take_all(pool) == [0, 1, 2, 3]
    assert (pool.num_free, pool.num_cached, pool.num_held) == (0, 0, 4)
    with pytest.raises(RuntimeError, match="held"):
        pool.take()


def test_findable_blocks_go_to_the_back_and_unfindable_ones_to_the_front() -> None:
    pool = BlockPool(5)
    take_all(pool)
    pool.mark_findable(1)
    pool.mark_findable(3)
    for block in (3, 0, 1, 2):
        pool.release(block)
        pool.check_integrity()
    # 2 is the latest unfindable one; 3 was released before 1, so it is used less recently
    assert list(pool.free_list()) == [2, 0, 3, 1]
    assert (pool.num_free, pool.num_cached, pool.num_held) == (2, 2, 1)


def test_a_block_that_can_be_found_is_not_handed_out() -> None:
    pool = BlockPool(1)
    pool.mark_findable(pool.take())
    pool.release(0)
    with pytest.raises(RuntimeError, match="index entry"):
        pool.take()
    pool.mark_unfindable(0)
    assert pool.take() == 0


def test_sharing_takes_a_cached_block_out_of_the_middle() -> None:
    pool = BlockPool(3)
    for block in take_all(pool):
        pool.mark_findable(block)
    for block in (0, 1, 2):
        pool.release(block)
    pool.share(1)
    pool.share(1)
    assert list(pool.free_list()) == [0, 2]
    assert pool.ref_count(1) == 2
    pool.release(1)
    assert list(pool.free_list()) == [0, 2]
    pool.release(1)
    assert list(pool.free_list()) == [0, 2, 1]
    pool.check_integrity()


def test_losing_its_entry_moves_a_block_to_the_front() -> None:
    pool = BlockPool(3)
    for block in take_all(pool):
        pool.mark_findable(block)
    for block in (0, 1, 2):
        pool.release(block)
    pool.mark_unfindable(2)
    assert list(pool.free_list()) == [2, 0, 1]
    pool.touch(0)
    assert list(pool.free_list()) == [2, 1, 0]
    pool.check_integrity()


def test_a_pinned_block_waits_for_the_end_of_the_step() -> None:
    pool = BlockPool(2)
    take_all(pool)
    pool.pin(1)
    pool.release(1)
    pool.release(0)
    assert list(pool.free_list()) == [0]
    assert pool.num_held == 1
    pool.share(1)
    pool.unpin_all()
    assert list(pool.free_list()) == [0]
    pool.pin(1)
    pool.release(1)
    pool.unpin_all()
    assert list(pool.free_list()) == [1, 0]
    pool.check_integrity()


def test_illegal_transitions_fail_on_their_line() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.release(block)
    with pytest.raises(RuntimeError, match="more often"):
        pool.release(block)
    with pytest.raises(RuntimeError, match="published"):
        pool.mark_findable(block)
    with pytest.raises(RuntimeError, match="not findable"):
        pool.mark_unfindable(block)
    with pytest.raises(RuntimeError, match="pinned"):
        pool.pin(block)
    with pytest.raises(ValueError, match="num_blocks"):
        BlockPool(0)
    pool.check_integrity()
