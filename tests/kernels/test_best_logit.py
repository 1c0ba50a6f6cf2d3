"""The best logit of each row, found while the head is computed: numpy's argmax of the stored logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native, kernels
from octavo.kernels.executor import StepInputs
from octavo.kernels.native import _plain_program
from octavo.kernels.ops import Add, Program
from octavo.kernels.quantization import quantize
from octavo.kernels.weights import WeightType
from support.toy import step_inputs, toy_layout, toy_program, toy_sequence

Floats = npt.NDArray[np.float32]
HEAD = "output.weight"

every_isa = pytest.mark.parametrize("isa", kernels.info()["available_isas"])


def executor(program: Program, isa: str, num_threads: int = 2) -> _native.Executor:
    layout = dataclasses.asdict(toy_layout(program))
    return _native.Executor(
        _plain_program(program), layout, num_threads=num_threads, max_num_tokens=256, isa=isa
    )


def arrays(inputs: StepInputs) -> list[Any]:
    return [getattr(inputs, field.name) for field in dataclasses.fields(inputs)]


def many_rows() -> StepInputs:
    """70 rows: more than are looked through at a time."""
    tokens = np.random.default_rng(1).integers(0, 300, 70).tolist()
    return step_inputs([toy_sequence(tokens, [3, 0, 5, 9, 11])], all_rows=True)


def with_head(change: Callable[[Floats], None], vocab_size: int = 517) -> Program:
    """A toy with a float head [vocab_size, 64] that `change` was applied to."""
    program = toy_program(tied=False, vocab_size=vocab_size)
    head = np.random.default_rng(2).standard_normal((vocab_size, 64), dtype=np.float32)
    change(head)
    weights = {**program.weights, HEAD: quantize(head, WeightType.F32, HEAD)}
    return dataclasses.replace(program, weights=weights)


def check(program: Program, isa: str) -> npt.NDArray[np.int32]:
    """run_best against run, for several teams; returns the ids."""
    inputs = arrays(many_rows())
    expected = executor(program, isa).run(*inputs)
    for num_threads in (1, 2, 5):
        (ids,), (logits,) = executor(program, isa, num_threads).run_best(*inputs)
        np.testing.assert_array_equal(ids, expected.argmax(axis=1))
        np.testing.assert_array_equal(logits, expected[np.arange(len(ids)), ids])
    return ids


@every_isa
@pytest.mark.parametrize("weight_type", list(WeightType), ids=lambda t: t.name)
@pytest.mark.parametrize("vocab_size", [300, 512, 517])
def test_is_the_argmax(isa: str, weight_type: WeightType, vocab_size: int) -> None:
    ids = check(toy_program(weight_type=weight_type, vocab_size=vocab_size), isa)
    assert len(set(ids.tolist())) > 1


@every_isa
def test_the_lowest_of_equals(isa: str) -> None:
    def repeat(head: Floats) -> None:
        head[200:400] = head[:200]

    ids = check(with_head(repeat), isa)
    assert np.any(ids < 200)
    assert not np.any((ids >= 200) & (ids < 400))

    def clear(head: Floats) -> None:
        head[:] = 0
        head[::2] *= -1

    assert not check(with_head(clear), isa).any()


@every_isa
def test_the_first_nan(isa: str) -> None:
    def spoil(head: Floats) -> None:
        head[[516, 300, 301], 5] = np.nan

    assert set(check(with_head(spoil), isa).tolist()) == {300}


@every_isa
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities(isa: str, value: float) -> None:
    def spoil(head: Floats) -> None:
        head[:, 0] = value  # of both signs once multiplied, and NaN nowhere
        head[400, 0] = 0

    check(with_head(spoil), isa)


@every_isa
def test_logits_that_change_after_the_head(isa: str) -> None:
    program = toy_program()
    ops = (*program.ops, Add("logits", "logits"))
    doubled = dataclasses.replace(program, ops=ops)
    (ids,), (logits,) = executor(doubled, isa).run_best(*arrays(many_rows()))
    (single_ids,), (single,) = executor(program, isa).run_best(*arrays(many_rows()))
    np.testing.assert_array_equal(ids, single_ids)
    np.testing.assert_array_equal(logits, 2 * single)


@every_isa
def test_writes_what_run_writes(isa: str) -> None:
    program = toy_program()
    one, other = executor(program, isa), executor(program, isa)
    one.run(*arrays(many_rows()))
    other.run_best(*arrays(many_rows()))
    np.testing.assert_array_equal(one.kv_memory, other.kv_memory)


@every_isa
def test_no_rows(isa: str) -> None:
    ids, logits = executor(toy_program(), isa).run_best(*arrays(step_inputs([])))
    assert (ids.shape, logits.shape) == ((1, 0), (1, 0))
