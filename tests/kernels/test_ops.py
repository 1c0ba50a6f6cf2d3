"""Row-wise ops and attention of every instruction set of this machine, against float64 twins in numpy.

Each op runs in a program of its own: float32 embeddings feed it exactly the rows that the test chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import kernels
from octavo.batch import ScheduledSequence
from octavo.kernels.executor import StepInputs
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.native import NativeExecutor
from octavo.kernels.ops import Add, Attention, Embed, KVWrite, Op, Program, RmsNorm, Rope, SiluMul, TakeRows
from octavo.kernels.weights import Weight, WeightType
from support.toy import step_inputs, toy_sequence

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

BLOCK_SIZES = (4, 8, 16, 32, 64, 128)
CONTEXTS = (1, 7, 8, 63, 64, 65, 200)
every_isa = pytest.mark.parametrize("isa", kernels.info()["available_isas"])
every_kv_dtype = pytest.mark.parametrize("kv_dtype", ["float16", "float32"])


# --- programs of one op ---


def program_of(
    ops: Sequence[Op], tables: Mapping[str, Floats], vectors: Mapping[str, Floats], shape: tuple[int, int]
) -> Program:
    """Buffer b gets rows of tables[b], then come `ops`, the last of which writes "out".

    All tables have as many rows as "out" has columns, since logits are [rows, vocab_size].
    shape: kv heads, head_dim.
    """
    widths = {name: table.shape[1] for name, table in tables.items()}
    vocab_size = len(next(iter(tables.values())))
    arrays = {**tables, **{name: vector.reshape(1, -1) for name, vector in vectors.items()}}
    return Program(
        ops=(*(Embed(name, name) for name in tables), *ops, TakeRows("out", "logits")),
        buffers={"out": vocab_size, **widths, "logits": vocab_size},
        weights={name: float_weight(name, array) for name, array in arrays.items()},
        num_layers=1,
        num_kv_heads=shape[0],
        head_dim=shape[1],
        vocab_size=vocab_size,
    )


def float_weight(name: str, array: Floats) -> Weight:
    data = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint8)
    rows, cols = array.shape
    return Weight(name, WeightType.F32, rows, cols, data)


def run_rows(program: Program, isa: str, token_ids: Sequence[int]) -> Floats:
    """One row of the result for each token, tokens standing at positions 0, 1, …"""
    layout = layout_of(program, 16, "float32", num_blocks=-(-len(token_ids) // 16))
    executor = NativeExecutor(program, layout, num_threads=2, max_num_tokens=len(token_ids), isa=isa)
    inputs = step_inputs([toy_sequence(token_ids, range(layout.num_blocks))], all_rows=True)
    return executor.run(inputs).copy()


def layout_of(program: Program, block_size: int, dtype: str, num_blocks: int) -> KVLayout:
    return KVLayout(
        num_layers=1,
        num_kv_heads=program.num_kv_heads,
        head_dim=program.head_dim,
        block_size=block_size,
        num_blocks=num_blocks,
        dtype=dtype,
    )


def random_rows(num_rows: int, width: int, seed: int = 0) -> Floats:
    """Rows of very different sizes; the first is zero."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-3, 3, (num_rows, 1))
    sizes[0] = 0
    return (rng.standard_normal((num_rows, width)) * sizes).astype(np.float32)


def assert_close(got: Floats, expected: Doubles, tolerance: float) -> None:
    """Within a share of the row's largest number."""
    assert got.shape == expected.shape
    limit = tolerance * np.abs(expected).max(axis=-1, keepdims=True) + 1e-30
    assert np.all(np.abs(got - expected) <= limit)


# --- row by row ---


@every_isa
@pytest.mark.parametrize("width", [1, 7, 8, 9, 31, 32, 33, 100, 576])
def test_rms_norm(isa: str, width: int) -> None:
    rows = random_rows(width, width)
    weight = random_rows(2, width, seed=1)[1]
    program = program_of([RmsNorm("x", "w", "out", 1e-5)], {"x": rows}, {"w": weight}, (1, 8))
    x = rows.astype(np.float64)
    expected = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5) * weight
    assert_close(run_rows(program, isa, range(width)), expected, 1e-6)


@every_isa
@pytest.mark.parametrize("width", [1, 7, 8, 9, 32, 41, 100])
def test_silu_mul(isa: str, width: int) -> None:
    gate, up = random_rows(width, width), random_rows(width, width, seed=1)
    gate[-1] = np.linspace(-1000, 1000, width)  # where exp overflows
    program = program_of([SiluMul("gate", "up", "out")], {"gate": gate, "up": up}, {}, (1, 8))
    with np.errstate(over="ignore"):
        expected = gate / (1 + np.exp(-gate.astype(np.float64))) * up
    got = run_rows(program, isa, range(width))
    assert np.all(np.abs(got - expected) <= 1e-6 * np.abs(expected) + 1e-30 * np.abs(up))


@every_isa
@pytest.mark.parametrize("width", [1, 8, 13])
def test_add(isa: str, width: int) -> None:
    x, y = random_rows(width, width), random_rows(width, width, seed=1)
    program = program_of([Add("out", "y")], {"out": x, "y": y}, {}, (1, 8))
    np.testing.assert_array_equal(run_rows(program, isa, range(width)), x + y)


@every_isa
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 8), (24, 24), (64, 64), (80, 32), (24, 10), (8, 2)])
def test_rope(isa: str, interleaved: bool, head_dim: int, rotary_dim: int) -> None:
    num_heads = 3
    width, half = num_heads * head_dim, rotary_dim // 2
    rows = random_rows(width, width)
    factors = np.linspace(1, 4, half, dtype=np.float32)
    op = Rope("out", num_heads, head_dim, rotary_dim, 10_000.0, interleaved, "factors")
    program = program_of([op], {"out": rows}, {"factors": factors}, (1, head_dim))
    got = run_rows(program, isa, range(width)).reshape(width, num_heads, head_dim)

    angles = np.arange(width)[:, None] * (10_000.0 ** (-2 * np.arange(half) / rotary_dim) / factors)
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    before = rows.astype(np.float64).reshape(width, num_heads, head_dim)
    expected = before.copy()
    for i, (first, second) in enumerate(pairs):
        cos, sin = np.cos(angles[:, i, None]), np.sin(angles[:, i, None])
        expected[..., first] = before[..., first] * cos - before[..., second] * sin
        expected[..., second] = before[..., first] * sin + before[..., second] * cos
    assert_close(got, expected, 1e-6)
    np.testing.assert_array_equal(got[..., rotary_dim:], rows.reshape(got.shape)[..., rotary_dim:])


# --- attention ---

SHAPES = {  # kv heads, query heads a kv head, head_dim
    "1:1x8": (3, 1, 8),
    "2:1x24": (2, 2, 24),
    "3:1x64": (1, 3, 64),
    "4:1x80": (2, 4, 80),
    "7:1x16": (1, 7, 16),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
Shape = tuple[int, int, int]


def attention_tables(shape: Shape) -> dict[str, Floats]:
    kv_heads, group, head_dim = shape
    vocab_size = kv_heads * group * head_dim
    rng = np.random.default_rng(0)
    widths = {"q": vocab_size, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    tables = {name: rng.standard_normal((vocab_size, width), np.float32) for name, width in widths.items()}
    tables["q"][::3] *= 10  # some queries choose sharply
    return tables


def attention_program(shape: Shape) -> Program:
    kv_heads, group, head_dim = shape
    ops: list[Op] = [KVWrite("k", "v", 0), Attention("q", "out", 0, kv_heads * group, head_dim**-0.5)]
    return program_of(ops, attention_tables(shape), {}, (kv_heads, head_dim))


def prompts(shape: Shape, lengths: Iterable[int] = CONTEXTS) -> list[list[int]]:
    rng = np.random.default_rng(1)
    vocab_size = shape[0] * shape[1] * shape[2]
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def attention_twin(shape: Shape, token_ids: Sequence[int], kv_dtype: str) -> Doubles:
    """[tokens, query heads · head_dim], one softmax over all positions up to the token's own."""
    kv_heads, group, head_dim = shape
    rows = {name: table[list(token_ids)] for name, table in attention_tables(shape).items()}
    q = rows["q"].astype(np.float64).reshape(-1, kv_heads, group, head_dim)
    k, v = (rows[n].astype(kv_dtype).astype(np.float64).reshape(-1, kv_heads, head_dim) for n in "kv")
    out = np.empty_like(q)
    for t in range(len(q)):
        scores = np.einsum("hgd,phd->hgp", q[t], k[: t + 1]) * head_dim**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[t] = np.einsum("hgp,phd->hgd", weights, v[: t + 1])
    return out.reshape(len(q), -1)


class Cache:
    """An executor with a pool of garbage, and a scattered block table for each prompt."""

    def __init__(self, shape: Shape, block_size: int, kv_dtype: str, **options: Any) -> None:
        self.block_size = block_size
        self.prompts = prompts(shape)
        needs = [-(-len(prompt) // block_size) for prompt in self.prompts]
        program = attention_program(shape)
        layout = layout_of(program, block_size, kv_dtype, num_blocks=sum(needs) + 1)
        blocks = np.random.default_rng(2).permutation(layout.num_blocks).tolist()
        self.tables = [[blocks.pop() for _ in range(need)] for need in needs]
        self.executor = NativeExecutor(
            program, layout, max_num_tokens=sum(CONTEXTS), **{"num_threads": 2, **options}
        )
        self.executor.kv[...] = np.nan

    def run_chunks(self, chunk: int) -> list[Floats]:
        """Every prompt in pieces of `chunk` tokens, all prompts in a step: rows by prompt."""
        rows: list[list[Floats]] = [[] for _ in self.prompts]
        for start in range(0, max(CONTEXTS), chunk):
            live = [n for n, prompt in enumerate(self.prompts) if start < len(prompt)]
            logits = self.executor.run(self._step(live, start, chunk))
            ends = np.cumsum([len(self.prompts[n][start : start + chunk]) for n in live])
            for n, part in zip(live, np.split(logits.copy(), ends[:-1]), strict=True):
                rows[n].append(part)
        return [np.concatenate(parts) for parts in rows]

    def _step(self, live: Sequence[int], start: int, chunk: int) -> StepInputs:
        sequences: list[ScheduledSequence] = [
            toy_sequence(self.prompts[n][start : start + chunk], self.tables[n], start=start) for n in live
        ]
        return step_inputs(sequences, block_size=self.block_size, all_rows=True)


@every_isa
@every_shape
@every_kv_dtype
def test_attention_for_every_block_size(isa: str, shape: Shape, kv_dtype: str) -> None:
    whole = {size: Cache(shape, size, kv_dtype, isa=isa).run_chunks(max(CONTEXTS)) for size in BLOCK_SIZES}
    for n, prompt in enumerate(prompts(shape)):
        expected = attention_twin(shape, prompt, kv_dtype)
        assert np.all(np.abs(whole[4][n] - expected) <= 2e-5)
        for size in BLOCK_SIZES[1:]:
            np.testing.assert_array_equal(whole[size][n], whole[4][n], err_msg=f"block size {size}")


@every_isa
@every_shape
@every_kv_dtype
@pytest.mark.parametrize("block_size", [4, 16])
def test_attention_is_the_same_bits_in_chunks(isa: str, shape: Shape, kv_dtype: str, block_size: int) -> None:
    whole = Cache(shape, block_size, kv_dtype, isa=isa).run_chunks(max(CONTEXTS))
    for chunk in (1, 7, 16, 64):
        parts = Cache(shape, block_size, kv_dtype, isa=isa).run_chunks(chunk)
        for got, expected in zip(parts, whole, strict=True):
            np.testing.assert_array_equal(got, expected)


@every_isa
@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_attention_is_the_same_bits_on_any_number_of_threads(isa: str, num_threads: int) -> None:
    shape = SHAPES["3:1x64"]
    alone = Cache(shape, 16, "float16", isa=isa, num_threads=1).run_chunks(64)
    team = Cache(shape, 16, "float16", isa=isa, num_threads=num_threads).run_chunks(64)
    for got, expected in zip(team, alone, strict=True):
        np.testing.assert_array_equal(got, expected)


@every_isa
@every_kv_dtype
@pytest.mark.parametrize("block_size", [4, 16, 128])
def test_only_the_step_s_slots_are_written(isa: str, kv_dtype: str, block_size: int) -> None:
    shape = SHAPES["2:1x24"]
    cache = Cache(shape, block_size, kv_dtype, isa=isa)
    cache.run_chunks(max(CONTEXTS))
    kv = cache.executor.kv[0]
    used = sorted(block for table in cache.tables for block in table)
    (spare,) = set(range(len(kv))) - set(used)
    assert np.isnan(kv[spare]).all()
    num_written = sum(CONTEXTS) * shape[0] * shape[2]
    for which in (0, 1):  # K, V
        assert np.count_nonzero(~np.isnan(kv[:, :, which])) == num_written


@every_isa
def test_rounding_to_float16_is_to_nearest_even(isa: str) -> None:
    shape = (1, 1, 8)
    values = np.array(
        [1 + 2**-11, 1 + 3 * 2**-11, 2**-24 * 1.5, 2**-26, 65519, 65520, -0.0, 2**-14], np.float32
    )
    tables = {**attention_tables(shape), "v": np.tile(values, (8, 1))}
    program = program_of([KVWrite("k", "v", 0), Attention("q", "out", 0, 1, 1.0)], tables, {}, (1, 8))
    layout = layout_of(program, 4, "float16", num_blocks=1)
    executor = NativeExecutor(program, layout, num_threads=1, max_num_tokens=1, isa=isa)
    executor.run(step_inputs([toy_sequence([0], [0])], block_size=4))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(executor.kv[0, 0, 0, 1, :8].view(np.uint16), expected.view(np.uint16))
