"""Promise 1: paging never changes a token. Every bit a client can see equals a cold, lonely run.

The answers compared hold token ids and the exact log-probabilities of three candidates a token, so that a
difference in the last bit of a logit shows. Each test also asserts that what it is about has happened.
"""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import pytest

from support.harness import GREEDY, SEEDED, Cold, Harness

VOCAB = 512
VICTIM = 0  # the first sequence of an engine
PARAMS = {"greedy": GREEDY, "seeded": SEEDED}


@pytest.fixture(scope="module")
def cold(toy_path: Path) -> Cold:
    return Cold(toy_path, block_size=16)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 1000 + length).choices(range(VOCAB), k=length)


def with_changes(params, **changes):  # type: ignore[no-untyped-def]
    return dataclasses.replace(params, **changes)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("batch_size", [2, 8, 32])
@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_alone_or_among_ragged_neighbours(toy_path, cold, batch_size, block_size, params) -> None:  # type: ignore[no-untyped-def]
    harness = Harness(
        toy_path, block_size=block_size, num_blocks=4096 // block_size, max_num_batched_tokens=4096
    )
    prompts = [prompt(1 + (37 * i) % 101, seed=i) for i in range(batch_size)]
    for i, tokens in enumerate(prompts):
        harness.add(str(i), tokens, params)
    harness.run()
    assert harness.max_running == batch_size
    for i, tokens in enumerate(prompts):
        assert harness.answers[str(i)][0] == cold.answer(tokens, params)
    harness.assert_drained()


@pytest.mark.parametrize("lengths", [[1, 2, 63, 64, 65, 200]])
def test_very_unequal_lengths_in_one_step_with_decodes(toy_path, cold, lengths) -> None:  # type: ignore[no-untyped-def]
    harness = Harness(toy_path, max_num_batched_tokens=4096)
    harness.add("decoding", prompt(9))
    harness.step()
    for length in lengths:
        harness.add(str(length), prompt(length))
    harness.step()
    assert harness.stats.num_running == len(lengths) + 1
    harness.run()
    for length in lengths:
        assert harness.answers[str(length)][0] == cold.answer(prompt(length))


@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("where", ["B-1", "B", "B+1", "3B", "3B+1", "whole"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_prefix_cache_cold_warm_and_half_warm(toy_path, cold, block_size, where, params) -> None:  # type: ignore[no-untyped-def]
    tokens = prompt(3 * block_size + 9)
    prefix_len = {
        "B-1": block_size - 1,
        "B": block_size,
        "B+1": block_size + 1,
        "3B": 3 * block_size,
        "3B+1": 3 * block_size + 1,
        "whole": len(tokens),
    }[where]
    harness = Harness(toy_path, block_size=block_size, num_blocks=2048 // block_size)
    warm_up = tokens[:prefix_len] + ([] if where == "whole" else [(tokens[prefix_len] + 1) % VOCAB])
    harness.answer(warm_up, with_changes(GREEDY, max_tokens=1))
    harness.add("warm", tokens, params)
    harness.run()
    assert harness.num_cached["warm"] == min(prefix_len, len(tokens) - 1)
    assert harness.answers["warm"][0] == cold.answer(tokens, params)
    harness.add("again", tokens, params)
    harness.run()
    assert harness.num_cached["again"] == len(tokens) - 1
    assert harness.answers["again"][0] == cold.answer(tokens, params)
    harness.assert_drained()


@pytest.mark.parametrize("budget", [1, 7, 16, 64, 4096])
@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_prompt_in_chunks_of_any_size(toy_path, cold, budget, block_size, num_threads) -> None:  # type: ignore[no-untyped-def]
    harness = Harness(
        toy_path,
        block_size=block_size,
        num_blocks=4096 // block_size,
        max_num_batched_tokens=budget,
        num_threads=num_threads,
    )
    lengths = [100, 33, 5]
    for length in lengths:
        harness.add(str(length), prompt(length))
    harness.run()
    assert harness.num_steps >= sum(lengths) / budget
    for length in lengths:
        assert harness.answers[str(length)][0] == cold.answer(prompt(length))


def test_preempted_at_every_possible_step(toy_path, cold) -> None:  # type: ignore[no-untyped-def]
    victim, neighbour = prompt(21, seed=1), prompt(13, seed=2)
    for enabled in (True, False):
        for at in range(1, 40):
            harness = Harness(toy_path, block_size=4, max_num_batched_tokens=8, enable_prefix_caching=enabled)
            harness.add("victim", victim, SEEDED)
            harness.add("neighbour", neighbour)

            def preempt(running: Harness, at: int = at) -> None:
                if running.num_steps != at or not running.engine.is_unfinished("victim"):
                    return
                if any(s.seq_id == VICTIM for s in running.engine.core.last_batch.sequences):
                    running.scheduler.preempt(VICTIM)

            harness.run(before_step=preempt)
            if harness.num_steps <= at:
                assert at > 10, "a run has more steps than this"
                break
            assert harness.answers["victim"][0] == cold.answer(victim, SEEDED)
            assert harness.answers["neighbour"][0] == cold.answer(neighbour)
            if harness.stats.num_preemptions == 0:
                assert at > 10, "the victim must have been running this early"
            harness.assert_drained()


@pytest.mark.parametrize("num_requests", [2, 3, 5])
def test_preempted_because_the_pool_is_full(toy_path, cold, num_requests) -> None:  # type: ignore[no-untyped-def]
    params = with_changes(SEEDED, max_tokens=24)
    harness = Harness(toy_path, block_size=4, num_blocks=10)
    prompts = [prompt(5, seed=i) for i in range(num_requests)]
    for i, tokens in enumerate(prompts):
        harness.add(str(i), tokens, params)
    harness.run()
    assert harness.stats.num_preemptions >= 1
    for i, tokens in enumerate(prompts):
        answer = harness.answers[str(i)][0]
        assert len(answer.token_ids) == 24
        assert answer == cold.answer(tokens, params)
    harness.assert_drained()


@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("length", [7, 16, 33])
def test_forked_choices_equal_lonely_ones(toy_path, cold, block_size, length) -> None:  # type: ignore[no-untyped-def]
    params = with_changes(SEEDED, n=4)
    harness = Harness(toy_path, block_size=block_size, num_blocks=2048 // block_size)
    harness.add("neighbour", prompt(50))
    harness.add("forked", prompt(length), params)
    harness.run()
    assert harness.max_running == 5
    if length % block_size:
        assert harness.stats.num_copied_blocks >= 3, "the shared partial block is copied on write"
    answers = harness.answers["forked"]
    assert answers == cold.answers(prompt(length), params)
    assert answers[0] == cold.answer(prompt(length), SEEDED)
    assert len({tuple(a.token_ids) for a in answers}) > 1, "choices differ"
    assert harness.answers["neighbour"][0] == cold.answer(prompt(50))
    harness.assert_drained()


def test_forked_in_a_pool_too_small_for_all(toy_path, cold) -> None:  # type: ignore[no-untyped-def]
    params = with_changes(SEEDED, n=4, max_tokens=20)
    harness = Harness(toy_path, block_size=4, num_blocks=16)
    harness.add("forked", prompt(10), params)
    harness.add("other", prompt(11), params)
    harness.run()
    assert harness.stats.num_preemptions >= 1
    assert harness.answers["forked"] == cold.answers(prompt(10), params)
    assert harness.answers["other"] == cold.answers(prompt(11), params)
    harness.assert_drained()


@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_several_rounds_a_step(toy_path, cold, block_size) -> None:  # type: ignore[no-untyped-def]
    """Log-probabilities would keep a step to one round, so here tokens and texts are compared alone."""
    params = with_changes(GREEDY, logprobs=None, max_tokens=33)
    prompts = [prompt(1 + (37 * i) % 101, seed=i) for i in range(8)]
    harness = Harness(toy_path, block_size=block_size, num_blocks=2048 // block_size, patience=math.inf)
    for i, tokens in enumerate(prompts):
        harness.add(str(i), tokens, with_changes(params, max_tokens=33 - 3 * (i % 2)))
    harness.run()
    assert harness.num_steps < 33
    for i, tokens in enumerate(prompts):
        expected = cold.answer(tokens, with_changes(params, max_tokens=33 - 3 * (i % 2)))
        assert harness.answers[str(i)][0] == expected
    for i, tokens in enumerate(prompts):
        harness.answer(tokens, params, request_id=f"again-{i}")
        assert harness.num_cached[f"again-{i}"] == len(tokens) - 1
        assert harness.answers[f"again-{i}"][0] == cold.answer(tokens, params)
    harness.assert_drained()


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "float32"])
def test_everything_at_once_over_random_schedules(toy_path, kv_cache_dtype) -> None:  # type: ignore[no-untyped-def]
    """Random arrivals, shared prefixes, forks, preemptions, chunks, threads and block sizes, all mixed."""
    cold = Cold(toy_path, kv_cache_dtype=kv_cache_dtype)
    seen = {"hits": 0, "preemptions": 0, "copies": 0}
    for seed in range(12):
        rng = random.Random(seed)
        block_size = rng.choice([4, 8, 16, 32, 64, 128])
        harness = Harness(
            toy_path,
            block_size=block_size,
            num_blocks=max(3, 320 // block_size),
            max_num_batched_tokens=rng.choice([5, 16, 33, 128]),
            num_threads=rng.choice([1, 2]),
            kv_cache_dtype=kv_cache_dtype,
            max_num_seqs=8,
            patience=rng.choice([0.0, math.inf]),
        )
        stem = prompt(60, seed=seed)
        asked = {}
        for i in range(14):
            tokens = stem[: rng.choice([0, 3, 16, 31, 48, 60])] + prompt(
                rng.randint(1, 20), seed=rng.random()
            )  # type: ignore[arg-type]
            params = with_changes(
                rng.choice([GREEDY, SEEDED, with_changes(GREEDY, logprobs=None)]),
                n=rng.choice([1, 1, 3]),
                max_tokens=rng.randint(1, 16),
            )
            asked[str(i)] = (tokens, params)
            harness.add(str(i), tokens, params)
            for _ in range(rng.randint(0, 3)):
                harness.step()
        harness.run()
        for request_id, (tokens, params) in asked.items():
            assert harness.answers[request_id] == cold.answers(tokens, params), (seed, request_id)
        harness.assert_drained()
        seen["hits"] += harness.stats.num_prefix_hits
        seen["preemptions"] += harness.stats.num_preemptions
        seen["copies"] += harness.stats.num_copied_blocks
    assert all(seen.values()), seen
