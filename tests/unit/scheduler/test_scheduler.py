"""One token gap under budgets: order, chunks, matches before chunks, ends."""

from __future__ import annotations

import pytest

from octavo.batch import ScheduledBatch
from octavo.request import FinishReason
from support.paged_memory import TEXT, answer
from support.simulated_engine import SimulatedEngine


def shares(batch: ScheduledBatch) -> list[tuple[int, int, int]]:
    """(sequence, start, tokens) in order."""
    return [(s.seq_id, s.start, len(s.token_ids)) for s in batch.sequences]


def test_decoding_comes_first_then_part_done_prompts_then_admissions() -> None:
    engine = SimulatedEngine(num_blocks=64, max_num_batched_tokens=24)
    engine.add("decoding", TEXT[:4])
    assert shares(engine.step()) == [(0, 0, 4)]
    engine.add("long", TEXT[100:140])
    assert shares(engine.step()) == [(0, 4, 1), (1, 0, 16)]
    engine.add("new", [61, 62, 63])
    # 23 tokens are left for a gap of 24: one row tile, and what then remains goes to the newcomer
    assert shares(engine.step()) == [(0, 5, 1), (1, 16, 16), (2, 0, 3)]
    assert shares(engine.step()) == [(0, 6, 1), (2, 3, 1), (1, 32, 8)]
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


@pytest.mark.parametrize("budget", [1, 7, 16, 64, 4096])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_any_budget_gives_the_same_tokens(budget: int, prefix_caching: bool) -> None:
    engine = SimulatedEngine(num_blocks=64, max_num_batched_tokens=budget, prefix_caching=prefix_caching)
    for length in (1, 3, 4, 5, 12, 13, 40):
        engine.add(f"{length}", TEXT[:length], 6)
    while engine.scheduler.has_work:
        assert engine.step().num_tokens <= budget
    engine.assert_drained()
    for request_id in engine.requests:
        engine.assert_right(request_id)
    assert (engine.scheduler.stats().num_prefix_hits > 0) == prefix_caching


def test_logits_are_asked_for_where_a_gap_closes() -> None:
    engine = SimulatedEngine(num_blocks=64, max_num_batched_tokens=40)
    engine.add("a", TEXT[:20])
    engine.add("b", TEXT[100:140])
    batch = engine.step()
    assert shares(batch) == [(0, 0, 20), (1, 0, 16)]
    assert batch.logits_for == (0,)
    assert [(row.seq_id, row.row) for row in batch.samples] == [(0, 0)]
    batch = engine.step()
    assert batch.logits_for == (0, 1)


def test_cached_tokens_cost_no_budget() -> None:
    """60 of 64 tokens cached, a budget of 16: three cold prompts of 4 fit into the same step."""
    engine = SimulatedEngine(num_blocks=64, max_num_batched_tokens=16)
    engine.generate(TEXT[:60], 1)
    engine.add("warm", TEXT[:64])
    for index in range(3):
        engine.add(f"cold-{index}", [60 + index, 1, 2, 3])
    batch = engine.step()
    assert [(start, count) for _, start, count in shares(batch)] == [(60, 4), (0, 4), (0, 4), (0, 4)]
    engine.run()
    assert engine.num_cached["warm"] == 60
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_the_whole_prompt_is_matched_before_it_is_cut() -> None:
    engine = SimulatedEngine(num_blocks=256, block_size=8, max_num_batched_tokens=64, max_model_len=600)
    expected = engine.generate(TEXT[:512], 4)
    engine.add("again", TEXT[:512], 4)
    assert shares(engine.step()) == [(1, 511, 1)]
    engine.run()
    assert engine.outputs["again", 0] == expected
    assert engine.num_cached["again"] >= 504


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 24, 25, 64])
def test_a_prompt_that_is_wholly_cached_computes_one_token(length: int) -> None:
    engine = SimulatedEngine(num_blocks=64, block_size=8)
    outputs = [engine.generate(TEXT[:length], 5) for _ in range(4)]
    assert outputs == [answer(TEXT[:length], 5)] * 4
    cached = [engine.num_cached[request_id] for request_id in engine.requests]
    assert cached == [0] + [length - 1] * 3


@pytest.mark.parametrize("shared", [0, 7, 8, 9, 16])
def test_neighbours_with_any_shared_prefix(shared: int) -> None:
    engine = SimulatedEngine(num_blocks=64, block_size=8, max_num_batched_tokens=40)
    for index in range(8):
        engine.add(f"{index}", [*TEXT[: shared * (index % 2)], *[index] * (index + 1)])
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_siblings_of_one_step_share_what_it_computes() -> None:
    engine = SimulatedEngine(num_blocks=16)
    engine.add("a", TEXT[:10])
    engine.add("b", TEXT[:9])
    batch = engine.step()
    assert shares(batch) == [(0, 0, 10), (1, 8, 1)]
    assert list(batch.sequences[0].block_table)[:2] == list(batch.sequences[1].block_table)[:2]
    engine.run()
    engine.assert_right("b")


def test_the_next_turn_finds_the_answer() -> None:
    engine = SimulatedEngine(num_blocks=32)
    reply = engine.generate(TEXT[:10], 9)
    engine.add("turn 2", [*TEXT[:10], *reply, 1, 2, 3])
    engine.run()
    # the last token of the answer was sampled and never computed
    assert engine.num_cached["turn 2"] == 10 + 9 - 1
    engine.assert_right("turn 2")


def test_salts_do_not_share() -> None:
    engine = SimulatedEngine(num_blocks=32)
    for salt in ("x", "y", "x"):
        engine.add(f"{len(engine.requests)}", TEXT[:10], salt=salt)
        engine.run()
    assert list(engine.num_cached.values()) == [0, 0, 9]
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_a_recycled_block_is_not_found_under_its_old_tokens() -> None:
    engine = SimulatedEngine(num_blocks=8, block_size=4)
    first = engine.generate(TEXT[:15], 2)
    for index in range(6):
        engine.generate([41 + index] * 12, 2)
    assert engine.scheduler.stats().num_evictions > 0
    assert engine.generate(TEXT[:15], 2) == first


def test_cached_blocks_make_room_at_once() -> None:
    engine = SimulatedEngine(num_blocks=20)
    for index in range(5):
        engine.generate([41 + index] * 16, 1)
    assert engine.scheduler.stats().num_cached_blocks == 20
    engine.add("large", TEXT[:72], 4)
    engine.step()
    assert engine.scheduler.num_running == 1
    engine.run()
    engine.assert_right("large")


def test_a_huge_max_tokens_reserves_nothing() -> None:
    engine = SimulatedEngine(num_blocks=32, eos_token_ids=frozenset(range(0, 50, 5)), max_model_len=64)
    for index in range(8):
        engine.add(f"{index}", [40 + index, 1, 2], 10**6)
    engine.step()
    assert engine.scheduler.stats().num_prefix_queries == 24
    assert engine.scheduler.stats().num_admitted == 8, "all run together"
    engine.run()
    assert set(engine.reasons.values()) == {FinishReason.STOP}


@pytest.mark.parametrize("num_prompt", [1, 20, 30, 31])
def test_without_a_limit_the_model_length_ends_it(num_prompt: int) -> None:
    engine = SimulatedEngine(max_model_len=32)
    request_id = engine.add("r", TEXT[:num_prompt], None)
    engine.run()
    assert engine.reasons["r", 0] is FinishReason.LENGTH
    assert len(engine.outputs["r", 0]) == 32 - num_prompt
    engine.assert_right(request_id)


def test_a_lone_sequence_ends_with_the_pool() -> None:
    engine = SimulatedEngine(num_blocks=4, block_size=4, max_model_len=256)
    engine.add("r", TEXT[:5], None)
    engine.run()
    assert engine.reasons["r", 0] is FinishReason.LENGTH
    assert len(engine.outputs["r", 0]) == 4 * 4 + 1 - 5


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    engine = SimulatedEngine(num_blocks=10, watermark=0.0)
    engine.add("first", TEXT[:20], 4)
    engine.step()
    engine.add("large", TEXT[100:132], 4)
    engine.add("small", TEXT[200:202], 4)
    engine.step()
    assert engine.scheduler.num_running == 1
    engine.run()
    order = [update.request_id for update in engine.updates if update.finish_reason]
    assert order == ["first", "large", "small"]
    assert engine.scheduler.stats().num_delayed > 0


def test_the_watermark_is_kept_free_unless_nothing_runs() -> None:
    engine = SimulatedEngine(num_blocks=10, watermark=0.3)
    engine.add("alone", TEXT[:36], 2)
    engine.step()
    assert engine.scheduler.num_running == 1
    engine.run()
    engine = SimulatedEngine(num_blocks=10, watermark=0.3)
    engine.add("a", TEXT[:20], 4)
    engine.add("b", TEXT[100:109], 4)
    engine.step()
    assert engine.scheduler.num_running == 1, "5 + 3 + a reserve of 3 are more than 10"
    engine.run()


def test_sequences_are_limited() -> None:
    engine = SimulatedEngine(num_blocks=32, max_num_seqs=3)
    for index in range(7):
        engine.add(f"{index}", [index, 1], 3)
    most = 0
    while engine.scheduler.has_work:
        engine.step()
        most = max(most, engine.scheduler.num_running)
    assert most == 3
    assert len(engine.reasons) == 7


def test_abort_at_any_moment() -> None:
    engine = SimulatedEngine(num_blocks=16, max_num_batched_tokens=16)
    engine.add("running", TEXT[:8])
    engine.add("stays", TEXT[20:25])
    engine.step()
    engine.add("part done", TEXT[100:130])
    engine.step()
    engine.add("waiting", TEXT[200:210])
    for request_id in ("waiting", "part done"):
        engine.take(engine.scheduler.abort(request_id))
        assert engine.reasons[request_id, 0] is FinishReason.ABORT
    batch = engine.scheduler.schedule()
    engine.take(engine.scheduler.abort("running"))
    updates = engine.commit(batch)
    assert [update.request_id for update in updates] == ["stays"]
    assert engine.scheduler.abort("running") == []
    assert engine.scheduler.abort("unknown") == []
    engine.run()
    engine.assert_right("stays")


def test_the_engine_may_finish_a_sequence_between_steps() -> None:
    engine = SimulatedEngine()
    engine.add("r", TEXT[:5], 20)
    engine.step()
    batch = engine.scheduler.schedule()
    with pytest.raises(RuntimeError):
        engine.scheduler.finish(0, FinishReason.STOP)
    engine.commit(batch)
    engine.scheduler.finish(0, FinishReason.STOP)
    engine.assert_drained()
    with pytest.raises(KeyError):
        engine.scheduler.finish(0, FinishReason.STOP)


def test_one_step_at_a_time() -> None:
    engine = SimulatedEngine()
    engine.add("r", TEXT[:5])
    batch = engine.scheduler.schedule()
    with pytest.raises(RuntimeError):
        engine.scheduler.schedule()
    engine.commit(batch)
    with pytest.raises(RuntimeError, match="not in flight"):
        engine.scheduler.commit(batch, engine.memory.run(batch))


def test_an_empty_batch_needs_no_commit() -> None:
    engine = SimulatedEngine()
    assert engine.scheduler.schedule().is_empty
    batch = engine.scheduler.schedule()
    assert engine.scheduler.commit(batch, engine.memory.run(batch)) == []


def test_stop_token_and_min_tokens() -> None:
    expected = answer(TEXT[:5], 12)
    engine = SimulatedEngine(eos_token_ids=frozenset({expected[1]}))
    engine.add("stop", TEXT[:5], 12, stop_token_ids=(expected[4],), ignore_eos=True)
    engine.add("eos", TEXT[:5], 12)
    engine.add("late", TEXT[:5], 12, min_tokens=3)
    engine.run()
    last = {u.request_id: u for u in engine.updates if u.finish_reason}
    first_stop = expected.index(expected[4]) + 1
    assert engine.outputs["stop", 0] == expected[:first_stop]
    assert last["stop"].stop_token_id == expected[4]
    assert engine.outputs["eos", 0] == expected[: expected.index(expected[1]) + 1]
    assert last["eos"].stop_token_id is None
    assert len(engine.outputs["late", 0]) > 2
