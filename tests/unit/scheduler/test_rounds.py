"""Several rounds of a step: only where nothing could be decided in between, and to the same tokens."""

from __future__ import annotations

import pytest

from octavo.batch import SampledTokens
from octavo.request import FinishReason
from support.paged_memory import TEXT, answer
from support.simulated_engine import SimulatedEngine


def engine_with(num_requests: int = 1, max_tokens: int = 20, **options: object) -> SimulatedEngine:
    """Requests that have got their first token."""
    engine = SimulatedEngine(**{"num_blocks": 64, "max_rounds": 8, **options})  # type: ignore[arg-type]
    for index in range(num_requests):
        engine.add(f"{index}", TEXT[20 * index : 20 * index + 9 + index], max_tokens, temperature=0.0)
    assert engine.step().num_rounds == 1
    return engine


def test_as_many_as_the_answer_has_left() -> None:
    engine = engine_with(3)
    assert [engine.step().num_rounds for _ in range(3)] == [8, 8, 3]
    engine.assert_drained()
    for request_id in engine.requests:
        engine.assert_right(request_id)
        assert len(engine.outputs[request_id, 0]) == 20
        assert engine.reasons[request_id, 0] is FinishReason.LENGTH


def test_no_more_than_the_shortest_answer_has_left() -> None:
    engine = engine_with(2)
    engine.add("short", [41, 42], 3, temperature=0.0)
    assert [engine.step().num_rounds for _ in range(3)] == [1, 2, 8]
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_one_where_a_caller_watches() -> None:
    engine = engine_with(2, max_rounds=1)
    while engine.scheduler.has_work:
        assert engine.step().num_rounds == 1


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.0, "logprobs": 1},
        {"temperature": 0.0, "stop": ("x",)},
        {"temperature": 0.0, "min_tokens": 3},
        {"temperature": 0.0, "presence_penalty": 0.5},
    ],
    ids=str,
)
def test_one_where_a_neighbours_token_needs_more_than_the_best_logit(params: dict[str, object]) -> None:
    engine = engine_with(1)
    engine.add("neighbour", [41, 42], 4, **params)  # type: ignore[arg-type]
    for _ in range(4):
        assert engine.step().num_rounds == 1
    assert engine.step().num_rounds == 8
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_one_while_prompts_are_computed() -> None:
    engine = engine_with(1, max_num_batched_tokens=17)
    engine.add("long", TEXT[100:150], 4, temperature=0.0)
    rounds = [engine.step().num_rounds for _ in range(5)]
    assert rounds == [1, 1, 1, 1, 3], "three chunks and a bit, then both run on"


def test_one_where_the_budget_leaves_somebody_out() -> None:
    engine = SimulatedEngine(num_blocks=64, max_rounds=8, max_num_batched_tokens=2)
    engine.add("forked", TEXT[:4], n=3, temperature=0.0)
    while engine.scheduler.num_running < 3:
        engine.step()
    batch = engine.step()
    assert (len(batch.sequences), batch.num_rounds) == (2, 1)
    engine.run()
    engine.assert_right("forked")


def test_a_stop_token_ends_its_sequence_and_the_rounds() -> None:
    expected = answer(TEXT[:9], 20)
    stop = expected[5]
    engine = SimulatedEngine(num_blocks=64, max_rounds=8)
    engine.add("a", TEXT[:9], 20, temperature=0.0, stop_token_ids=(stop,))
    engine.add("b", TEXT[20:30], 20, temperature=0.0)
    first = expected.index(stop)
    while not engine.reasons:
        engine.step()
    assert len(engine.outputs["b", 0]) == first + 1, "the round was the last"
    engine.run()
    assert engine.outputs["a", 0] == expected[: first + 1]
    assert engine.reasons["a", 0] is FinishReason.STOP
    engine.assert_right("b")
    assert len(engine.outputs["b", 0]) == 20


def test_eos_ends_the_rounds_of_those_who_do_not_ignore_it() -> None:
    expected = answer(TEXT[:9], 20)
    eos = expected[4]
    for ignore_eos in (False, True):
        engine = SimulatedEngine(num_blocks=64, max_rounds=8, eos_token_ids=frozenset({eos}))
        engine.add("a", TEXT[:9], 20, temperature=0.0, ignore_eos=ignore_eos)
        engine.add("b", TEXT[20:30], 20, temperature=0.0, ignore_eos=True)
        while not engine.reasons:
            engine.step()
        assert engine.outputs["a", 0] == (expected if ignore_eos else expected[: expected.index(eos) + 1])
        assert len(engine.outputs["b", 0]) == len(engine.outputs["a", 0])


def test_a_pool_without_room_for_more_goes_on_round_by_round() -> None:
    """Six of seven blocks are held; eight rounds of both would take four more. Nobody goes for that."""
    engine = engine_with(2, num_blocks=7, watermark=0.0)
    for _ in range(3):
        batch = engine.step()
        assert (len(batch.sequences), batch.num_rounds) == (2, 1)
    assert engine.scheduler.stats().num_preemptions == 0
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_rounds_draw_on_what_is_promised() -> None:
    engine = engine_with(2, admission="reserve", num_blocks=16)
    assert engine.cache.num_available_blocks < 2
    assert engine.step().num_rounds == 8
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_forks_draw_on_the_promise_that_they_share() -> None:
    engine = SimulatedEngine(num_blocks=22, max_rounds=8, admission="reserve")
    engine.add("forked", TEXT[:5], 20, n=3, temperature=0.0)
    assert [engine.step().num_rounds for _ in range(2)] == [1, 8]
    engine.run()
    engine.assert_right("forked")


def test_what_rounds_have_filled_is_found_again() -> None:
    engine = engine_with(1)
    engine.run()
    whole = [*TEXT[:9], *engine.outputs["0", 0]]
    engine.add("again", whole, 2, temperature=0.0)
    engine.run()
    assert engine.num_cached["again"] == 28, "all that was computed: the last token of an answer never is"
    engine.assert_right("again")


def test_fewer_rounds_than_planned_and_more_later() -> None:
    engine = engine_with(2)
    batch = engine.scheduler.schedule(8)
    tokens = engine.memory.run(batch).tokens
    engine.take(engine.scheduler.commit(batch, SampledTokens(tokens[:6])))
    assert [len(output) for output in engine.outputs.values()] == [4, 4]
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 18])
def test_rounds_that_are_not_whole_or_too_many_change_nothing(num_tokens: int) -> None:
    engine = engine_with(2)
    batch = engine.scheduler.schedule(8)
    tokens = (engine.memory.run(batch).tokens * 2)[:num_tokens]
    with pytest.raises(ValueError, match="tokens"):
        engine.scheduler.commit(batch, SampledTokens(tokens))
    engine.fail(batch)
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_a_failed_step_of_several_rounds_is_undone() -> None:
    engine = engine_with(3)
    held = engine.scheduler.stats().num_held_blocks
    batch = engine.scheduler.schedule(8)
    assert batch.num_rounds == 8
    assert engine.scheduler.stats().num_held_blocks > held
    engine.fail(batch)
    assert engine.scheduler.stats().num_held_blocks == held
    assert [engine.step().num_rounds for _ in range(4)] == [1, 1, 1, 8], "suspects one by one, then all again"
    engine.run()
    for request_id in engine.requests:
        engine.assert_right(request_id)


def test_an_abort_while_rounds_are_in_flight() -> None:
    engine = engine_with(2)
    batch = engine.scheduler.schedule(8)
    engine.take(engine.scheduler.abort("0"))
    engine.commit(batch)
    engine.run()
    engine.assert_right("0")
    engine.assert_right("1")
    assert len(engine.outputs["1", 0]) == 20
