"""Several steps in one call of run_best: the same bits, in tokens, logits and memory, as one call a step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import kernels
from octavo.batch import BlockCopy, ScheduledSequence
from octavo.kernels.executor import Executor, StepInputs
from octavo.kernels.native import NativeExecutor
from octavo.kernels.ops import Program
from octavo.kernels.quantization import dequantize, quantize
from octavo.kernels.reference import ReferenceExecutor
from octavo.kernels.weights import WeightType
from support.toy import step_inputs, toy_layout, toy_program, toy_sequence

EMBEDDING = "token_embd.weight"
PROMPTS = ([3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4], [6])

every_isa = pytest.mark.parametrize("isa", kernels.info()["available_isas"])


def native(program: Program, block_size: int = 8, **options: Any) -> NativeExecutor:
    layout = toy_layout(program, block_size=block_size, num_blocks=256 // block_size)
    return NativeExecutor(program, layout, **{"num_threads": 2, "max_num_tokens": 64, **options})


def reference(program: Program, block_size: int = 8) -> ReferenceExecutor:
    layout = toy_layout(program, block_size=block_size, num_blocks=256 // block_size)
    return ReferenceExecutor(program, layout)


def tables(block_size: int, num_positions: int = 32) -> list[list[int]]:
    """Scattered blocks for each prompt and the tokens to come."""
    blocks = np.random.default_rng(5).permutation(256 // block_size).tolist()
    return [[blocks.pop() for _ in range(num_positions // block_size)] for _ in PROMPTS]


def prefilled(executor: Executor, block_size: int) -> list[int]:
    """The prompts but for their last tokens, which are returned."""
    parts = [
        toy_sequence(prompt[:-1], table)
        for prompt, table in zip(PROMPTS, tables(block_size), strict=True)
        if prompt[:-1]
    ]
    executor.run(step_inputs(parts, block_size=block_size))
    return [prompt[-1] for prompt in PROMPTS]


def decode(last: list[int], block_size: int, after: int = 0, **more: Any) -> StepInputs:
    """The step that computes one token a sequence, `after` steps after the prompts."""
    parts: list[ScheduledSequence] = [
        toy_sequence([token], table, start=len(prompt) - 1 + after)
        for token, prompt, table in zip(last, PROMPTS, tables(block_size), strict=True)
    ]
    return step_inputs(parts, block_size=block_size, **more)


@every_isa
@pytest.mark.parametrize("block_size", [4, 8, 32])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("weight_type", [WeightType.F32, WeightType.Q4_1], ids=lambda t: t.name)
def test_rounds_are_steps(isa: str, block_size: int, num_threads: int, weight_type: WeightType) -> None:
    program = toy_program(weight_type=weight_type)
    at_once = native(program, block_size, isa=isa, num_threads=num_threads)
    ids, logits = at_once.run_best(decode(prefilled(at_once, block_size), block_size), num_rounds=15)
    assert ids.shape == logits.shape == (15, 3)

    one_by_one = native(program, block_size, isa=isa, num_threads=num_threads)
    last = prefilled(one_by_one, block_size)
    for after in range(15):
        (one,), (best,) = one_by_one.run_best(decode(last, block_size, after))
        np.testing.assert_array_equal(ids[after], one)
        np.testing.assert_array_equal(logits[after], best)
        last = one.tolist()
    np.testing.assert_array_equal(at_once.kv.view(np.uint8), one_by_one.kv.view(np.uint8))
    assert len(np.unique(ids)) > 3, "the model says something"


@every_isa
def test_the_reference_gives_the_same_tokens(isa: str) -> None:
    program = toy_program()
    one, other = native(program, isa=isa), reference(program)
    ids, logits = one.run_best(decode(prefilled(one, 8), 8), num_rounds=9)
    expected_ids, expected = other.run_best(decode(prefilled(other, 8), 8), num_rounds=9)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(logits, expected, rtol=1e-3)


@every_isa
def test_blocks_are_copied_once_before_the_first_round(isa: str) -> None:
    """Copied again, the block would lose what the first round wrote."""
    program = toy_program()
    executor = native(program, isa=isa)
    last = prefilled(executor, 8)
    expected, _ = executor.run_best(decode(last, 8), num_rounds=9)
    held = {block for table in tables(8) for block in table}
    spare = next(block for block in range(32) if block not in held)
    inputs = decode(last, 8, copies=[BlockCopy(tables(8)[0][0], spare)])
    inputs.block_tables[0, 0] = spare
    inputs.slot_mapping[0] = spare * 8 + inputs.positions[0] % 8
    ids, _ = executor.run_best(inputs, num_rounds=9)
    np.testing.assert_array_equal(ids, expected)


def executors(program: Program) -> list[Executor]:
    return [native(program, isa=isa) for isa in kernels.info()["available_isas"]] + [reference(program)]


def test_the_round_of_a_stop_token_is_the_last() -> None:
    for executor in executors(toy_program()):
        last = prefilled(executor, 8)
        ids, _ = executor.run_best(decode(last, 8), num_rounds=9)
        for at in (0, 4, 8):
            stop = int(ids[at, 1])
            first = int(np.flatnonzero((ids == stop).any(axis=1))[0])
            stopped, logits = executor.run_best(decode(last, 8), num_rounds=9, stop_token_ids=[511, stop])
            np.testing.assert_array_equal(stopped, ids[: first + 1])
            assert logits.shape == stopped.shape


def test_a_round_that_is_no_number_is_left_out_unless_it_is_the_first() -> None:
    """So whatever a caller did not get is what the next step starts with, and fails on."""
    clean = toy_program(tied=False)
    executor = native(clean)
    ids, _ = executor.run_best(decode(prefilled(executor, 8), 8), num_rounds=9)
    seen = {*ids[:3].ravel().tolist(), *(token for prompt in PROMPTS for token in prompt)}
    at, bad = next((at, int(t)) for at in range(3, 9) for t in ids[at] if int(t) not in seen)
    for spoiled in executors(with_nan_embedding(clean, bad)):
        last = prefilled(spoiled, 8)
        got, logits = spoiled.run_best(decode(last, 8), num_rounds=9)
        np.testing.assert_array_equal(got, ids[: at + 1])
        assert np.isfinite(logits).all()
        got, logits = spoiled.run_best(decode(ids[at].tolist(), 8, at + 1), num_rounds=9)
        assert got.shape == (1, 3)
        assert np.isnan(logits).any()


def with_nan_embedding(program: Program, token: int) -> Program:
    values: npt.NDArray[np.float32] = dequantize(program.weights[EMBEDDING]).copy()
    values[token] = np.nan
    spoiled = quantize(values, WeightType.F32, EMBEDDING)
    return dataclasses.replace(program, weights={**program.weights, EMBEDDING: spoiled})


def test_what_cannot_go_on_by_itself_is_refused() -> None:
    program = toy_program()
    two_tokens = step_inputs([toy_sequence([1, 2], [0, 1])], block_size=8)
    without_logits = dataclasses.replace(decode([1, 2, 3], 8), logits_rows=np.array([0, 2], np.int32))
    at_the_end = step_inputs([toy_sequence([1], [0, 1], start=14)], block_size=8)
    for executor in executors(program):
        for inputs in (two_tokens, without_logits):
            with pytest.raises(ValueError, match="num_rounds may be above 1 only where"):
                executor.run_best(inputs, num_rounds=2)
            assert len(executor.run_best(inputs)[0]) == 1
        with pytest.raises(ValueError, match="num_rounds must be at least 1, got 0"):
            executor.run_best(two_tokens, num_rounds=0)
        assert len(executor.run_best(at_the_end, num_rounds=2)[0]) == 2
        with pytest.raises(ValueError, match="too short for 3 rounds"):
            executor.run_best(at_the_end, num_rounds=3)
