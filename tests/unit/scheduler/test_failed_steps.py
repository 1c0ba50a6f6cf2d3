"""A step that raises gives everything back; the culprit alone gets the error."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo.cache.block_pool import BlockPool
from octavo.request import FinishReason
from support.paged_memory import TEXT
from support.simulated_engine import SimulatedEngine


def engine_with(num_requests: int = 3) -> SimulatedEngine:
    engine = SimulatedEngine(num_blocks=32, max_num_batched_tokens=32)
    for index in range(num_requests):
        engine.add(f"{index}", TEXT[12 * index : 12 * index + 9], 8)
    return engine


def run_with_culprit(
    engine: SimulatedEngine, is_bad: Callable[[int], bool], max_steps: int = 200
) -> list[int]:
    """Steps that hold a bad sequence raise. Returns how many sequences each step had."""
    sizes = []
    while engine.scheduler.has_work:
        batch = engine.scheduler.schedule()
        sizes.append(len(batch.sequences))
        if any(is_bad(s.seq_id) for s in batch.sequences):
            engine.fail(batch, num_written=len(batch.sequences) // 2)
        else:
            engine.commit(batch)
        assert len(sizes) < max_steps
    engine.assert_drained()
    return sizes


@pytest.mark.parametrize("when", range(6))
@pytest.mark.parametrize("num_written", [0, 1, 9])
def test_a_passing_failure_hurts_nobody(when: int, num_written: int) -> None:
    engine = engine_with()
    for _ in range(when):
        engine.step()
    engine.fail(engine.scheduler.schedule(), num_written)
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)
        assert len(engine.outputs[request_id, 0]) == 8


def test_the_culprit_is_found_alone() -> None:
    engine = engine_with()
    engine.step()
    sizes = run_with_culprit(engine, lambda seq_id: seq_id == 1)
    assert sizes[:4] == [3, 1, 1, 1], "the step that failed, then each suspect alone"
    assert sizes[4] == 2
    assert engine.reasons == {
        ("0", 0): FinishReason.LENGTH,
        ("1", 0): FinishReason.ERROR,
        ("2", 0): FinishReason.LENGTH,
    }
    assert [u.error for u in engine.updates if u.finish_reason is FinishReason.ERROR] == ["boom"]
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_a_lone_culprit_ends_at_once_with_all_its_choices() -> None:
    engine = SimulatedEngine(num_blocks=32)
    engine.add("r", TEXT[:9], 8, n=2)
    engine.fail(engine.scheduler.schedule())
    assert engine.reasons == {("r", 0): FinishReason.ERROR, ("r", 1): FinishReason.ERROR}
    engine.assert_drained()


def test_newcomers_wait_behind_suspects_and_run() -> None:
    engine = engine_with()
    engine.fail(engine.scheduler.schedule())
    engine.add("new", TEXT[100:105], 4)
    assert [[s.seq_id for s in engine.step().sequences] for _ in range(3)] == [[0], [1], [2]]
    assert len(engine.step().sequences) == 4
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_nothing_that_was_not_computed_is_found_after_a_failure() -> None:
    engine = SimulatedEngine(num_blocks=32)
    engine.add("a", TEXT[:12], 4)
    engine.add("b", TEXT[:12], 4)
    batch = engine.scheduler.schedule()
    assert batch.sequences[1].start == 8, "b matched blocks that this step computes"
    engine.fail(batch)
    assert engine.scheduler.stats().num_cached_blocks == 0
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)
    assert engine.scheduler.stats().num_prefix_queries == 24, "an admission that failed is not counted"


def test_an_abort_in_flight_of_a_failed_step() -> None:
    engine = engine_with()
    engine.step()
    batch = engine.scheduler.schedule()
    engine.take(engine.scheduler.abort("1"))
    engine.fail(batch)
    engine.run()
    engine.assert_right("0")
    engine.assert_right("2")


@pytest.mark.parametrize("failing_call", range(1, 50))
def test_an_allocation_that_raises_leaves_everything_as_it_was(
    failing_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimulatedEngine(num_blocks=24, max_num_batched_tokens=24, watermark=0.0)
    for index in range(5):
        engine.add(f"{index}", TEXT[6 * index : 6 * index + 9 + index], 14, n=1 + index % 3)
    calls = 0
    take = BlockPool.take

    def faulty(pool: BlockPool) -> int:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise MemoryError("injected")
        return take(pool)

    monkeypatch.setattr(BlockPool, "take", faulty)
    while engine.scheduler.has_work:
        held = engine.scheduler.stats().num_held_blocks
        try:
            batch = engine.scheduler.schedule()
        except MemoryError:
            engine.scheduler.check_integrity()
            assert engine.scheduler.stats().num_held_blocks <= held
            continue
        engine.commit(batch)
    assert calls >= failing_call
    engine.assert_drained()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_tokens_of_another_batch_change_nothing() -> None:
    engine = engine_with(2)
    batch = engine.scheduler.schedule()
    tokens = engine.memory.run(batch)
    with pytest.raises(ValueError, match="tokens"):
        engine.scheduler.commit(batch, type(tokens)(tokens.tokens[:1]))
    engine.fail(batch)
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


@pytest.mark.parametrize("seed", range(25))
def test_random_lives(seed: int) -> None:
    """Requests come, go, fail, fork and are preempted in small pools; every token is that of a lonely run."""
    rng = random.Random(seed)
    block_size, num_blocks = rng.choice([1, 2, 3, 4, 8, 16]), rng.randint(4, 40)
    engine = SimulatedEngine(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max(4, min(150, rng.choice([1, 2]) * num_blocks * block_size)),
        prefix_caching=rng.random() < 0.8,
        eos_token_ids=frozenset({3}),
        max_rounds=rng.choice([1, 2, 8]),
        max_num_seqs=rng.choice([1, 2, 4, 8, 16]),
        max_num_batched_tokens=rng.choice([1, 3, 7, 16, 40, 512]),
        admission=rng.choice(["watermark", "watermark", "reserve"]),
        watermark=rng.choice([0.0, 0.01, 0.2]),
        max_preemptions=rng.choice([0, 1, 3]),
    )
    for _ in range(150):
        if rng.random() < 0.3:
            add_random_request(engine, rng)
        if engine.scheduler.num_running and rng.random() < 0.05:
            engine.scheduler.preempt(rng.choice(engine.scheduler._running).seq.seq_id)
        batch = engine.scheduler.schedule(engine.max_rounds)
        if engine.requests and rng.random() < 0.05:
            engine.take(engine.scheduler.abort(rng.choice(list(engine.requests))))
        if rng.random() < 0.04:
            engine.fail(batch, rng.randint(0, 5))
        else:
            engine.commit(batch)
    engine.run(max_steps=20_000)
    for request_id, request in engine.requests.items():
        for index in range(request.params.n):
            engine.outputs.setdefault((request_id, index), [])
            assert (request_id, index) in engine.reasons
        engine.assert_right(request_id)


def add_random_request(engine: SimulatedEngine, rng: random.Random) -> None:
    start = rng.choice([0, 0, 50])
    prompt = [
        *TEXT[start : start + rng.randint(1, 60)],
        *(rng.randrange(4) for _ in range(rng.randint(0, 5))),
    ]
    limits = {
        "max_tokens": rng.choice([None, 1, 3, 8, 20, 10**6]),
        "n": rng.choice([1, 1, 1, 2, 3]),
        "temperature": rng.choice([0.0, 0.0, 1.0]),
    }
    try:
        engine.add(f"{len(engine.requests)}", prompt, salt=rng.choice(["", "", "x"]), **limits)  # type: ignore[arg-type]
    except ValueError:
        assert len(prompt) > 3 or limits["n"] > 1 or engine.cache.num_blocks < 5
