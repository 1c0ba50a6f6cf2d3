"""A full pool delays and preempts; it changes no token, loses none, and comes to an end."""

from __future__ import annotations

import pytest

from support.paged_memory import TEXT, answer
from support.simulated_engine import SimulatedEngine


@pytest.mark.parametrize("num_requests", [2, 3, 5])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_preempted_sequence_comes_back_complete(num_requests: int, prefix_caching: bool) -> None:
    engine = SimulatedEngine(num_blocks=10, block_size=4, prefix_caching=prefix_caching, watermark=0.0)
    for index in range(num_requests):
        engine.add(f"{index}", TEXT[10 * index : 10 * index + 5], 24)
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    for index in range(num_requests):
        assert engine.outputs[f"{index}", 0] == answer(TEXT[10 * index : 10 * index + 5], 24)


@pytest.mark.parametrize("when", range(14))
def test_preempted_at_any_step(when: int) -> None:
    engine = SimulatedEngine(num_blocks=32, max_num_batched_tokens=8)
    engine.add("r", TEXT[:18], 10)
    engine.add("neighbour", TEXT[50:60], 10)
    for _ in range(when):
        engine.step()
    if engine.scheduler.num_running:
        engine.scheduler.preempt(engine.scheduler._running[0].seq.seq_id)
    engine.scheduler.check_integrity()
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)
    assert (engine.num_cached["r"], engine.num_cached["neighbour"]) == (0, 0), "first admissions count"


def test_it_resumes_from_its_cached_blocks() -> None:
    engine = SimulatedEngine(num_blocks=32)
    engine.add("r", TEXT[:18], 10)
    for _ in range(4):
        engine.step()
    engine.scheduler.preempt(0)
    batch = engine.step()
    assert [(s.start, len(s.token_ids)) for s in batch.sequences] == [(21, 1)], "the partial block is copied"


def test_the_youngest_goes_first_and_nobody_is_admitted_in_that_step() -> None:
    engine = SimulatedEngine(num_blocks=7, watermark=0.0, block_size=4)
    for index in range(3):
        engine.add(f"{index}", TEXT[20 * index : 20 * index + 8], 12)
    engine.step()
    assert engine.scheduler.num_running == 3
    engine.add("new", [1], 1)
    batch = engine.step()
    # 6 of 7 blocks are held and each needs one: the oldest gets the seventh, the second takes the third's
    assert [s.seq_id for s in batch.sequences] == [0, 1]
    assert engine.scheduler.num_running == 2
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


@pytest.mark.parametrize("max_preemptions", [1, 2, 3])
def test_preemptions_are_bounded(max_preemptions: int) -> None:
    engine = SimulatedEngine(num_blocks=12, watermark=0.0, max_preemptions=max_preemptions)
    most: dict[int, int] = {}
    for index in range(8):
        engine.add(f"{index}", TEXT[10 * index : 10 * index + 6], 30)
    while engine.scheduler.has_work:
        engine.step()
        for entry in engine.scheduler._running:
            most[entry.seq.seq_id] = entry.seq.num_preemptions
    assert 0 < max(most.values()) <= max_preemptions
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_reserve_mode_never_preempts() -> None:
    engine = SimulatedEngine(num_blocks=16, admission="reserve")
    for index in range(12):
        engine.add(f"{index}", TEXT[10 * index : 10 * index + 6], 20, n=1 + index % 2)
    engine.run()
    stats = engine.scheduler.stats()
    assert stats.num_preemptions == 0
    assert stats.num_delayed > 0
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_a_long_job_is_not_starved_by_short_ones() -> None:
    engine = SimulatedEngine(num_blocks=24, max_num_seqs=4, watermark=0.0)
    engine.add("long", TEXT[:8], 60)
    num_steps = 0
    while ("long", 0) not in engine.reasons:
        while len(engine.scheduler._waiting) < 3:
            engine.add(f"{len(engine.requests)}", [len(engine.requests) % 40] * 10, 6)
        engine.step()
        num_steps += 1
        assert num_steps < 3 * 60
    engine.run()
    engine.assert_right("long")


def test_preempt_is_refused_in_flight() -> None:
    engine = SimulatedEngine()
    engine.add("r", TEXT[:5])
    with pytest.raises(RuntimeError):
        engine.scheduler.preempt(0)
    batch = engine.scheduler.schedule()
    with pytest.raises(RuntimeError):
        engine.scheduler.preempt(0)
    engine.commit(batch)
    engine.scheduler.preempt(0)
    engine.run()
    engine.assert_right("r")
