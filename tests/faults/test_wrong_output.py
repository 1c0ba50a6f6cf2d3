"""Faults that users of other engines met: answers changed by caching, block reuse, preemption, batching.

The public report of each is named; what is right is a cold run of the same prompt alone.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from support.harness import GREEDY, Cold, Harness

B = 8


@pytest.fixture(scope="module")
def cold(toy_path: Path) -> Cold:
    return Cold(toy_path)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{seed}/{length}").choices(range(512), k=length)


@pytest.mark.parametrize("length", [1, B - 1, B, B + 1, 3 * B, 3 * B + 1])
def test_the_second_identical_request_answers_the_same(toy_path, cold, length) -> None:  # type: ignore[no-untyped-def]
    """vllm-project/vllm 7845: the miss was right, every hit was wrong."""
    harness = Harness(toy_path, block_size=B)
    for repeat in range(4):
        request_id = str(repeat)
        assert harness.answer(prompt(length), request_id=request_id) == cold.answer(prompt(length))
        assert harness.num_cached[request_id] == (0 if repeat == 0 else length - 1)


@pytest.mark.parametrize("length", [8, 16, 64])
def test_whole_prompt_cached_at_a_block_boundary(toy_path, cold, length) -> None:  # type: ignore[no-untyped-def]
    """vllm-project/vllm 9972: nothing left to compute, so an empty batch or a wrong first token."""
    harness = Harness(toy_path, block_size=B)
    for repeat in range(3):
        harness.add(f"hit-{repeat}", prompt(length))
        harness.add(f"cold-{repeat}", prompt(13, seed=repeat))
        harness.run()
        assert harness.answers[f"hit-{repeat}"][0] == cold.answer(prompt(length))
        assert harness.answers[f"cold-{repeat}"][0] == cold.answer(prompt(13, seed=repeat))
        if repeat:
            assert harness.num_cached[f"hit-{repeat}"] >= length - B
    harness.assert_drained()


@pytest.mark.parametrize("shared", [0, B - 1, B, B + 1, 2 * B])
def test_shared_prefix_of_any_length_in_a_concurrent_batch(toy_path, cold, shared) -> None:  # type: ignore[no-untyped-def]
    """sgl-project/sglang 22819: requests whose shared prefix was exactly one block diverged."""
    for seed in range(20):
        rng = random.Random(seed)
        stem = prompt(shared, seed=99)
        prompts = [(stem if i % 2 == 0 else []) + prompt(3 + i, seed=i) for i in range(8)]
        order = rng.sample(range(8), k=8)
        harness = Harness(toy_path, block_size=B)
        for i in order:
            harness.add(str(i), prompts[i])
        harness.run()
        for i in order:
            assert harness.answers[str(i)][0] == cold.answer(prompts[i])
        if shared >= B:
            assert harness.stats.num_prefix_hits >= 3 * B


def test_a_recycled_block_is_not_found_under_its_old_content(toy_path, cold) -> None:  # type: ignore[no-untyped-def]
    """vllm-project/vllm 4761: eviction left the index entry behind."""
    harness = Harness(toy_path, block_size=B, num_blocks=8)
    first = prompt(4 * B)
    short = dataclasses.replace(GREEDY, max_tokens=4)
    harness.answer(first, short)
    for seed in range(1, 7):
        harness.answer(prompt(4 * B, seed=seed), short)
    assert harness.stats.num_evictions > 0
    assert harness.answer(first, short) == cold.answer(first, short)


def test_cached_tokens_are_free_of_charge_in_the_budget(toy_path, cold) -> None:  # type: ignore[no-untyped-def]
    """ROCm/ATOM 222: the step was sized before the hit was known."""
    harness = Harness(toy_path, block_size=4, max_num_batched_tokens=16)
    stem = prompt(60)
    harness.answer(stem, dataclasses.replace(GREEDY, max_tokens=1))
    harness.add("warm", stem + prompt(4, seed=1))
    for i in range(3):
        harness.add(f"short-{i}", prompt(4, seed=2 + i))
    deltas = harness.step()
    assert {delta.request_id for delta in deltas} == {"warm", "short-0", "short-1", "short-2"}
    harness.run()
    assert harness.num_cached["warm"] == 60
    assert harness.answers["warm"][0] == cold.answer(stem + prompt(4, seed=1))
    for i in range(3):
        assert harness.answers[f"short-{i}"][0] == cold.answer(prompt(4, seed=2 + i))


def test_the_whole_prompt_is_matched_before_it_is_cut(toy_path, cold) -> None:  # type: ignore[no-untyped-def]
    """ai-dynamo/dynamo 13312: at most one chunk of a cached prefix was reused."""
    harness = Harness(toy_path, block_size=B, max_num_batched_tokens=64)
    long = prompt(480)
    harness.answer(long)
    before = harness.num_steps
    harness.add("second", long)
    harness.step()
    assert harness.num_cached["second"] >= 472
    harness.run()
    assert harness.num_steps - before <= GREEDY.max_tokens + 1
    assert harness.answers["second"][0] == cold.answer(long)


@pytest.mark.parametrize("num_requests", [2, 3, 5])
def test_a_preempted_request_comes_back_whole(toy_path, cold, num_requests) -> None:  # type: ignore[no-untyped-def]
    """vllm-project/vllm 16832: text was missing after a preempted request resumed."""
    params = dataclasses.replace(GREEDY, max_tokens=24)
    harness = Harness(toy_path, block_size=4, num_blocks=10)
    for i in range(num_requests):
        harness.add(str(i), prompt(5, seed=i), params)
    harness.run()
    assert harness.stats.num_preemptions >= 1
    for i in range(num_requests):
        answer = harness.answers[str(i)][0]
        assert len(answer.token_ids) == 24
        assert answer == cold.answer(prompt(5, seed=i), params)
        assert answer.text == harness.assembly.tokenizer.decode(answer.token_ids)


def test_unequal_prompt_lengths_in_a_batch(toy_path, cold) -> None:  # type: ignore[no-untyped-def]
    """TransformerLensOrg/TransformerLens 1760: padding was taken for context in the shorter rows."""
    harness = Harness(toy_path, block_size=B, max_num_batched_tokens=512)
    harness.add("decoding", prompt(20, seed=5))
    harness.step()
    for length in (1, 2, 63, 64, 65, 200):
        harness.add(str(length), prompt(length))
    harness.run()
    for length in (1, 2, 63, 64, 65, 200):
        assert harness.answers[str(length)][0] == cold.answer(prompt(length))
