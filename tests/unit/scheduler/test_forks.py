"""n > 1: one prefill, then forks that share every block until they write."""

from __future__ import annotations

import pytest

from octavo.batch import BlockCopy
from octavo.request import FinishReason
from support.paged_memory import TEXT
from support.simulated_engine import SimulatedEngine


def test_forks_in_exact_ids() -> None:
    engine = SimulatedEngine(num_blocks=16, block_size=4)
    engine.add("r", TEXT[:6], 4, n=3)
    batch = engine.step()
    assert [(s.seq_id, list(s.block_table)) for s in batch.sequences] == [(0, [0, 1])]
    assert [(row.seq_id, row.row, row.index) for row in batch.samples] == [(0, 0, 0), (1, 0, 1), (2, 0, 2)]
    assert engine.scheduler.num_running == 3
    batch = engine.scheduler.schedule()
    assert batch.copies == (BlockCopy(1, 2), BlockCopy(1, 3))
    assert [list(s.block_table) for s in batch.sequences] == [[0, 2], [0, 3], [0, 1]]
    engine.commit(batch)
    engine.run()
    engine.assert_right("r")
    assert len({tuple(engine.outputs["r", index]) for index in range(3)}) == 3


def test_an_aligned_prompt_needs_no_copy() -> None:
    engine = SimulatedEngine(num_blocks=16, block_size=4)
    engine.add("r", TEXT[:8], 3, n=3)
    engine.run()
    assert engine.scheduler.stats().num_copied_blocks == 0
    engine.assert_right("r")


@pytest.mark.parametrize("budget", [1, 7, 64])
@pytest.mark.parametrize("num_blocks", [6, 10, 40])
def test_forks_under_pressure(budget: int, num_blocks: int) -> None:
    engine = SimulatedEngine(num_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=4)
    for index in range(4):
        engine.add(f"{index}", TEXT[30 * index : 30 * index + 5 + index], 12, n=1 + index)
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)
    assert (engine.scheduler.stats().num_preemptions > 0) == (num_blocks < 40 and budget > 1)


def test_admission_waits_for_seats_for_all() -> None:
    engine = SimulatedEngine(num_blocks=32, max_num_seqs=4)
    engine.add("pair", TEXT[:5], 6, n=2)
    engine.add("three", TEXT[20:25], 6, n=3)
    engine.step()
    assert engine.scheduler.num_running == 2
    while engine.scheduler.has_work:
        engine.step()
        assert engine.scheduler.num_running <= 4
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_abort_before_the_fork_ends_every_choice() -> None:
    engine = SimulatedEngine(num_blocks=32, max_num_batched_tokens=4)
    engine.add("r", TEXT[:10], 4, n=3)
    engine.step()
    engine.take(engine.scheduler.abort("r"))
    assert engine.reasons == {("r", index): FinishReason.ABORT for index in range(3)}
    engine.assert_drained()


def test_a_failed_fork_is_forked_again() -> None:
    engine = SimulatedEngine(num_blocks=32, max_num_batched_tokens=64)
    engine.add("r", TEXT[:10], 6, n=3)
    engine.add("other", TEXT[50:60], 6)
    batch = engine.scheduler.schedule()
    assert len(batch.samples) == 4
    assert engine.fail(batch) == []
    assert engine.scheduler.num_running == 0
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)
