"""Faults that users of other engines met: requests that wait for ever, or make all others wait."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from octavo.params import ParameterError
from support.harness import GREEDY, Harness


def prompt(length: int, seed: object = 0) -> list[int]:
    return random.Random(f"{seed}/{length}").choices(range(512), k=length)


def test_a_prompt_that_can_never_fit_is_refused_at_the_door(toy_path: Path) -> None:
    """vllm-project/vllm 35541: it was retried for ever at the head of the queue, and nobody passed."""
    harness = Harness(toy_path, block_size=4, num_blocks=100)
    for length in (402, 500, 800, 1500):
        with pytest.raises(ParameterError, match=str(length)) as refused:
            harness.add(f"long-{length}", prompt(length))
        assert refused.value.param == "prompt"
    harness.answers.clear()
    assert harness.answer(prompt(20)).finish_reason == "length"
    harness.assert_drained()


@pytest.mark.parametrize("length", [10, 62, 63])
def test_without_max_tokens_it_ends_at_the_model_length(toy_path: Path, length: int) -> None:
    """ggml-org/llama.cpp 3969: a small context and no limit gave endless generation."""
    harness = Harness(toy_path, block_size=4, max_model_len=64)
    answer = harness.answer(prompt(length), dataclasses.replace(GREEDY, max_tokens=None))
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 64 - length
    with pytest.raises(ParameterError, match="64"):
        harness.add("too long", prompt(64))


def test_cached_blocks_are_given_up_when_room_is_needed(toy_path: Path) -> None:
    """EricLBuehler/mistral.rs 167: only unused cached data stood in the way, and nothing moved."""
    harness = Harness(toy_path, block_size=4, num_blocks=40)
    for seed in range(12):
        harness.answer(prompt(30, seed=seed))
    assert harness.stats.num_free_blocks <= 1
    harness.add("needs most of the pool", prompt(140), dataclasses.replace(GREEDY, max_tokens=2))
    harness.step()
    assert harness.stats.num_running == 1
    harness.run()
    harness.assert_drained()


def test_a_huge_max_tokens_does_not_serialise_the_others(toy_path: Path) -> None:
    """NVIDIA/TensorRT-LLM 2865: parallel requests queued one behind the other when max_tokens was large."""
    harness = Harness(toy_path, block_size=4, num_blocks=8 * 8, max_model_len=200, max_num_seqs=8)
    params = dataclasses.replace(
        GREEDY, max_tokens=10**6, ignore_eos=False, stop_token_ids=tuple(range(0, 512, 8))
    )
    for i in range(8):
        harness.add(str(i), prompt(4, seed=i), params)
    harness.run()
    assert harness.max_running == 8
    assert all(answers[0].finish_reason in ("stop", "length") for answers in harness.answers.values())
    harness.assert_drained()
