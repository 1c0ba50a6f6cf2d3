"""Faults that users of other engines met: blocks and requests that are never given back."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.harness import GREEDY, Cold, Harness

B = 4


def prompt(length: int, seed: object = 0) -> list[int]:
    return random.Random(f"{seed}/{length}").choices(range(512), k=length)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_no_block_is_kept_by_any_way_of_ending(toy_path: Path, enable_prefix_caching: bool) -> None:
    """kekzl/imp 1115: one block a request was never returned, for whichever reason it ended."""
    harness = Harness(toy_path, block_size=B, num_blocks=64, enable_prefix_caching=enable_prefix_caching)
    endings = {
        "length": dataclasses.replace(GREEDY, max_tokens=5),
        "eos": dataclasses.replace(GREEDY, max_tokens=5, ignore_eos=False),
        "stop token": dataclasses.replace(GREEDY, max_tokens=9, stop_token_ids=tuple(range(0, 512, 2))),
        "stop string": dataclasses.replace(GREEDY, max_tokens=9, stop=("a", "e", "\ufffd")),
        "abort": dataclasses.replace(GREEDY, max_tokens=9),
        "fork": dataclasses.replace(GREEDY, max_tokens=5, n=3),
    }
    for at_once in (1, 8):
        for i in range(0, 500, at_once):
            for j in range(at_once):
                ending = list(endings)[(i + j) % len(endings)]
                harness.add(
                    f"{at_once}-{i + j}-{ending}", prompt(1 + (i + j) % (2 * B), seed=i), endings[ending]
                )
            for _ in range(3):
                harness.step()
            for request_id in harness.engine.unfinished_ids:
                if request_id.endswith("abort"):
                    harness.abort(request_id)
            harness.run()
            harness.assert_drained()
    reasons = {answer.finish_reason for answers in harness.answers.values() for answer in answers}
    assert reasons == {"length", "stop", "abort"}


def test_releasing_twice_fails_on_the_spot(toy_path: Path) -> None:
    """sgl-project/sglang 105: the slot of the last step was freed by two paths."""
    harness = Harness(toy_path, block_size=B)
    harness.add("a", prompt(9))
    harness.step()
    harness.abort("a")
    harness.abort("a")
    harness.assert_drained()


def test_aborted_streams_leave_nothing(toy_path: Path) -> None:
    """InternLM/lmdeploy 1788: after 100 to 300 aborted streams the server stalled."""
    rng = random.Random(3)
    harness = Harness(toy_path, block_size=B, num_blocks=40, max_num_seqs=8)
    for i in range(400):
        harness.add(str(i), prompt(rng.randint(1, 40), seed=i))
        for _ in range(rng.randint(0, 5)):
            harness.step()
        harness.abort(str(i))
    harness.assert_drained()
    long = dataclasses.replace(GREEDY, max_tokens=4)
    harness.add("nine tenths of the pool", prompt(140), long)
    harness.step()
    assert harness.stats.num_running == 1, "admitted at once"
    harness.run()
    assert harness.answers["nine tenths of the pool"][0] == Cold(toy_path).answer(prompt(140), long)


class InjectedError(RuntimeError):
    pass


def fail_at(target: Any, name: str, k: int) -> None:
    """Make the k-th call of target.name raise."""
    original: Callable[..., Any] = getattr(target, name)
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == k:
            raise InjectedError(name)
        return original(*args, **kwargs)

    setattr(target, name, wrapped)


def target_of(stage: str, harness: Harness) -> tuple[Any, str]:
    """The object and the method whose call is to fail. Of texts, that of the first request."""
    core = harness.engine.core
    return {
        "allocate": (harness.scheduler._cache, "_take_block"),
        "forward": (core.runner, "run"),
        "sample": (core.sampler, "sample"),
        "text": (harness.engine._live["0"].choices[0], "advance"),
    }[stage]


@pytest.mark.parametrize("stage", ["allocate", "forward", "sample", "text"])
def test_a_fault_in_any_call_harms_nobody_else(toy_path: Path, stage: str) -> None:
    """sgl-project/sglang 16067: an exception half way through a step leaked what was taken before."""
    cold = Cold(toy_path)
    num_failed = 0
    for k in range(1, 51):
        harness = Harness(toy_path, block_size=B, num_blocks=24, max_num_batched_tokens=16)
        prompts = {str(i): prompt(3 + 5 * i, seed=i) for i in range(4)}
        for request_id, tokens in prompts.items():
            harness.add(request_id, tokens)
        fail_at(*target_of(stage, harness), k)
        harness.run()
        for request_id, tokens in prompts.items():
            answer = harness.answers[request_id][0]
            if answer.finish_reason == "error":
                num_failed += 1
                assert harness.errors[request_id]
            else:
                assert answer == cold.answer(tokens), (stage, k)
        harness.assert_drained()
    if stage == "text":
        assert num_failed > 0


@pytest.mark.parametrize("stage", ["forward", "sample"])
def test_a_request_that_always_fails_ends_alone(toy_path: Path, stage: str) -> None:
    """A fault tied to one request: it gets the error, the others their tokens."""
    cold = Cold(toy_path)
    harness = Harness(toy_path, block_size=B, num_blocks=24, max_num_batched_tokens=16)
    prompts = {str(i): prompt(3 + 5 * i, seed=i) for i in range(4)}
    poison = 511
    prompts["poisoned"] = [1, 2, poison, 3]
    for tokens in prompts.values():
        tokens[:] = [t if t != poison or tokens is prompts["poisoned"] else 0 for t in tokens]
    core = harness.engine.core
    target, name = {"forward": (core.runner, "run"), "sample": (core.sampler, "sample")}[stage]
    original = getattr(target, name)

    def poisoned(*args: Any) -> Any:
        batch = args[-1]
        if any(poison in s.token_ids for s in batch.sequences):
            raise InjectedError
        return original(*args)

    setattr(target, name, poisoned)
    for request_id, tokens in prompts.items():
        harness.add(request_id, tokens)
    harness.run()
    assert harness.answers["poisoned"][0].finish_reason == "error"
    assert list(harness.errors) == ["poisoned"]
    for request_id, tokens in prompts.items():
        if request_id != "poisoned":
            assert harness.answers[request_id][0] == cold.answer(tokens)
    harness.assert_drained()
