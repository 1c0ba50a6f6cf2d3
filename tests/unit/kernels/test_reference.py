"""The numpy executor: ops against arithmetic by hand, paging against one straight run, bad input refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from octavo.batch import BlockCopy
from octavo.kernels import ops
from octavo.kernels.executor import StepInputs
from octavo.kernels.quantization import dequantize
from octavo.kernels.reference import ReferenceExecutor, attend, rms_norm, rope, silu
from support.toy import step_inputs, toy_layout, toy_program, toy_sequence

BLOCK_SIZE = 4
TOKENS = [5, 9, 200, 7, 7, 31, 450, 2, 13, 77, 101]  # 11: two blocks and three slots


def make_executor(dtype: str = "float32", num_blocks: int = 16) -> ReferenceExecutor:
    program = toy_program()
    layout = toy_layout(program, block_size=BLOCK_SIZE, num_blocks=num_blocks, dtype=dtype)
    return ReferenceExecutor(program, layout, dtype=np.float64)


def whole_run(tokens: list[int] = TOKENS) -> np.ndarray:
    """Logits of every token, computed in one step from fresh memory."""
    table = range(math.ceil(len(tokens) / BLOCK_SIZE))
    inputs = step_inputs([toy_sequence(tokens, table)], block_size=BLOCK_SIZE, all_rows=True)
    return make_executor().run(inputs)


# --- ops ---


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0]])
    out = rms_norm(x, np.array([[1.0, 2.0]]), eps=0.5)
    np.testing.assert_allclose(out, np.array([[3, 8], [0, 0]]) / math.sqrt(13))


def test_silu_of_small_zero_and_extreme_values() -> None:
    x = np.array([0.0, 1.0, -1.0, -1e4, 1e4], np.float32)
    with np.errstate(all="raise", under="ignore"):
        out = silu(x)
    np.testing.assert_allclose(out, [0, 1 / (1 + math.exp(-1)), -1 / (1 + math.e), 0, 1e4], rtol=1e-6)


@pytest.mark.parametrize(("interleaved", "pairs"), [(True, [(0, 1), (2, 3)]), (False, [(0, 2), (1, 3)])])
def test_rope_turns_each_pair_by_its_own_angle(interleaved: bool, pairs: list[tuple[int, int]]) -> None:
    """Two heads of six elements, of which four are rotated: base 100 gives frequencies 1 and 1/10."""
    op = ops.Rope("x", 2, 6, 4, 100.0, interleaved)
    x = np.arange(1.0, 13.0).reshape(1, 12)
    out = rope(op, x, np.array([3], np.int32), factors=np.array([1.0, 2.0]))
    for head in (0, 6):
        for (a, b), angle in zip(pairs, (3.0, 3.0 / 10 / 2), strict=True):
            before = complex(x[0, head + a], x[0, head + b])
            after = complex(out[0, head + a], out[0, head + b])
            assert after == pytest.approx(before * complex(math.cos(angle), math.sin(angle)))
        np.testing.assert_array_equal(out[0, head + 4 : head + 6], x[0, head + 4 : head + 6])


def test_attention_weighs_values_by_softmax_and_shares_kv_heads() -> None:
    """Four query heads on two kv heads. Scores of head 0: log 1 and log 3, so weights 1/4 and 3/4."""
    keys = np.zeros((2, 2, 8))
    keys[:, 1, 0] = math.log(3)
    values = np.stack([np.full((2, 8), 10.0), np.full((2, 8), 20.0)])
    values[:, 1] += 4
    q = np.zeros((4, 8))
    q[[0, 3], 0] = 2.0
    out = attend(q, keys, values, scale=0.5)
    np.testing.assert_allclose(out[:, 0], [13, 12, 22, 23])


def test_biases_and_an_output_matrix_of_its_own_are_used() -> None:
    plain, rich = toy_program(), toy_program(tied=False, biases=True)
    linear = [op for op in rich.ops if isinstance(op, ops.Linear)]
    assert sum(op.bias is not None for op in linear) == 4 * rich.num_layers
    assert (linear[-1].weight, plain.ops[-1]) == (
        "output.weight",
        ops.Linear("normed", "token_embd.weight", "logits"),
    )
    layout = toy_layout(rich, block_size=BLOCK_SIZE)
    inputs = step_inputs([toy_sequence(TOKENS, [0, 1, 2])], block_size=BLOCK_SIZE)
    biased = ReferenceExecutor(rich, layout).run(inputs)
    unbiased_ops = tuple(
        dataclasses.replace(op, bias=None) if isinstance(op, ops.Linear) else op for op in rich.ops
    )
    unbiased = ReferenceExecutor(dataclasses.replace(rich, ops=unbiased_ops), layout).run(inputs)
    assert np.abs(biased - unbiased).max() > 0.1


def test_embedding_is_the_row_of_the_token() -> None:
    program = toy_program(num_layers=1)
    short = dataclasses.replace(program, ops=(ops.Embed("token_embd.weight", "logits"),))
    inputs = step_inputs([toy_sequence([3, 511], [0])], block_size=BLOCK_SIZE)
    out = ReferenceExecutor(short, toy_layout(program, block_size=BLOCK_SIZE)).run(inputs)
    np.testing.assert_array_equal(out, dequantize(program.weights["token_embd.weight"])[[3, 511]])


# --- paging ---


def test_the_toy_depends_on_its_whole_context_and_is_sure_of_its_tokens() -> None:
    """What makes the toy of use: another first token changes the last logits, and the best two are apart."""
    logits = whole_run()
    other = whole_run([TOKENS[0] + 1, *TOKENS[1:]])
    assert np.abs(logits - other).max(axis=1).min() > 1
    best_two = np.sort(logits, axis=1)[:, -2:]
    assert np.median(best_two[:, 1] - best_two[:, 0]) > 1


@pytest.mark.parametrize("chunk", [1, 3, BLOCK_SIZE, 8])
def test_chunks_in_scattered_blocks_equal_one_run(chunk: int) -> None:
    executor, table, rows = make_executor(), [9, 2, 14], []
    for start in range(0, len(TOKENS), chunk):
        sequence = toy_sequence(TOKENS[start : start + chunk], table, start=start)
        rows.append(executor.run(step_inputs([sequence], block_size=BLOCK_SIZE, all_rows=True)))
    np.testing.assert_allclose(np.concatenate(rows), whole_run(), rtol=1e-5, atol=1e-5)


def test_neighbours_in_a_step_do_not_mix() -> None:
    other = [400, 3, 8]
    both = step_inputs(
        [toy_sequence(other, [5]), toy_sequence(TOKENS, [9, 2, 14])], block_size=BLOCK_SIZE, all_rows=True
    )
    logits = make_executor().run(both)
    np.testing.assert_allclose(logits[:3], whole_run(other), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits[3:], whole_run(), rtol=1e-5, atol=1e-5)


def test_a_copied_block_stands_for_the_original() -> None:
    """Copies go in order (1 to 4, then 4 to 6) and before the writes: the last token continues on block 6."""
    executor = make_executor()
    executor.run(step_inputs([toy_sequence(TOKENS[:7], [0, 1])], block_size=BLOCK_SIZE))
    step = step_inputs(
        [toy_sequence(TOKENS[7:8], [0, 6], start=7)],
        block_size=BLOCK_SIZE,
        copies=[BlockCopy(1, 4), BlockCopy(4, 6)],
    )
    np.testing.assert_allclose(executor.run(step)[0], whole_run()[7], rtol=1e-5, atol=1e-5)


def test_kv_is_rounded_to_the_dtype_of_the_cache() -> None:
    inputs = step_inputs([toy_sequence(TOKENS, [0, 1, 2])], block_size=BLOCK_SIZE)
    half, single = make_executor("float16"), make_executor("float32")
    assert 0 < np.abs(half.run(inputs) - single.run(inputs)).max() < 0.5
    np.testing.assert_array_equal(half._keys[0], single._keys[0].astype(np.float16))
    np.testing.assert_array_equal(half._values[0], single._values[0].astype(np.float16))


def test_only_the_wanted_rows_have_logits() -> None:
    inputs = step_inputs([toy_sequence(TOKENS, [0, 1, 2])], block_size=BLOCK_SIZE)
    wanted = dataclasses.replace(inputs, logits_rows=np.array([2, 10], np.int32))
    np.testing.assert_allclose(make_executor().run(wanted), whole_run()[[2, 10]], rtol=1e-5, atol=1e-5)
    nothing = dataclasses.replace(inputs, logits_rows=np.array([], np.int32))
    assert make_executor().run(nothing).shape == (0, 512)


# --- refusals ---


def good_inputs() -> StepInputs:
    return step_inputs(
        [toy_sequence([5, 6], [1]), toy_sequence([7], [2, 3], start=4)],
        block_size=BLOCK_SIZE,
        copies=[BlockCopy(8, 9)],
    )


BAD: dict[str, list[list[Any]]] = {
    "token_ids": [[5, 6, 512], [5, -1, 7]],
    "positions": [[0, 2, 4], [0, 1, 5], [0, 1], [-1, 0, 4]],
    "slot_mapping": [[4, 5, 64], [4, -1, 12], [4, 4, 12], [4, 5]],
    "block_tables": [[[1, 0], [2, 16]], [[-1, 0], [2, 3]], [[1], [2]], [[1, 0]], [1, 2]],
    "query_start": [[0, 3, 2], [1, 2, 3], [0, 2, 4], [0, 3], []],
    "context_lens": [[2, 9], [1, 5], [2], [-1, 5]],
    "logits_rows": [[1, 3], [-1, 2], [2, 1], [1, 1]],
    "copies": [[[16, 9]], [[8, -1]], [[8, 9, 10]], [8, 9]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_bad_inputs_are_refused_before_anything_is_written(name: str, value: object) -> None:
    executor, inputs = make_executor(), good_inputs()
    bad = dataclasses.replace(inputs, **{name: np.array(value, np.int32)})
    before = executor._keys.copy(), executor._values.copy()
    with pytest.raises(ValueError, match="|".join(BAD)):
        executor.run(bad)
    np.testing.assert_array_equal(before, (executor._keys, executor._values))
    executor.run(inputs)
    assert np.any(executor._keys != before[0])


def test_other_dtypes_and_strides_are_refused() -> None:
    inputs = good_inputs()
    wrong: list[Any] = [inputs.token_ids.astype(np.int64), np.repeat(inputs.token_ids, 2)[::2]]
    for bad in wrong:
        with pytest.raises(ValueError, match="token_ids must be int32 and C-contiguous"):
            make_executor().run(dataclasses.replace(inputs, token_ids=bad))


def test_a_layout_of_another_model_is_refused() -> None:
    layout = dataclasses.replace(toy_layout(toy_program()), head_dim=8)
    with pytest.raises(ValueError, match="head_dim"):
        ReferenceExecutor(toy_program(), layout)
