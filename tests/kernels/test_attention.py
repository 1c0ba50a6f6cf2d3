"""Attention alone: long contexts in ranges, shared prefixes, the same bits whoever is in the step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native, kernels
from octavo.kernels.native import NativeExecutor
from support.toy import step_inputs, toy_layout, toy_program, toy_sequence

Floats = npt.NDArray[np.float32]

RANGE = 256  # kRange of kernel_table.h
NUM_SLOTS = 4096
SHAPE = (3, 3, 16)  # kv heads, query heads a kv head, head_dim
SCALE = 0.25
every_isa = pytest.mark.parametrize("isa", kernels.info()["available_isas"])
every_block_size = pytest.mark.parametrize("block_size", [4, 16, 128])
one_block_too = pytest.mark.parametrize("block_size", [4, 16, 128, 1024])


@dataclass(frozen=True)
class Query:
    """The last num_tokens of a context, and its block table."""

    context_len: int
    table: tuple[int, ...]
    num_tokens: int = 1

    def rows(self, shape: tuple[int, int, int]) -> Floats:
        """Distinct for contexts and tables, so that no row can stand in for another."""
        seed = [self.context_len, self.num_tokens, *self.table[-2:]]
        return np.random.default_rng(seed).standard_normal((self.num_tokens, int(np.prod(shape))), np.float32)


class Blocks:
    """Hands out scattered blocks of a pool."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._free = np.random.default_rng(1).permutation(NUM_SLOTS // block_size).tolist()

    def query(self, context_len: int, num_tokens: int = 1, prefix: Sequence[int] = ()) -> Query:
        """A context that begins with the blocks of `prefix`."""
        num_own = -(-context_len // self.block_size) - len(prefix)
        own = [self._free.pop() for _ in range(num_own)]
        return Query(context_len, (*prefix, *own), num_tokens)

    def prefix(self, num_positions: int) -> list[int]:
        return [self._free.pop() for _ in range(num_positions // self.block_size)]


@functools.cache
def attention(
    isa: str,
    block_size: int,
    num_threads: int = 1,
    is_half: bool = True,
    shape: tuple[int, int, int] = SHAPE,
) -> _native.PagedAttention:
    """With random K and V of magnitude around 1."""
    kv_heads, group_heads, head_dim = shape
    cache = _native.PagedAttention(
        num_layers=1,
        num_kv_heads=kv_heads,
        group_heads=group_heads,
        head_dim=head_dim,
        block_size=block_size,
        num_blocks=NUM_SLOTS // block_size,
        is_half=is_half,
        num_threads=num_threads,
        isa=isa,
    )
    values = cache.kv_memory.view(np.float16 if is_half else np.float32)
    values[:] = np.random.default_rng(0).standard_normal(values.size, np.float32)
    return cache


def run(
    cache: _native.PagedAttention,
    queries: Sequence[Query],
    shape: tuple[int, int, int] = SHAPE,
    *,
    share: bool = True,
) -> list[Floats]:
    """Rows of each query, all in one step."""
    tables = np.zeros((len(queries), max(len(query.table) for query in queries)), np.int32)
    for i, query in enumerate(queries):
        tables[i, : len(query.table)] = query.table
    starts = np.cumsum([0, *(query.num_tokens for query in queries)]).astype(np.int32)
    out = cache.run(
        np.concatenate([query.rows(shape) for query in queries]),
        tables,
        starts,
        np.array([query.context_len for query in queries], np.int32),
        scale=SCALE,
        share_prefixes=share,
    )
    return np.split(out, starts[1:-1])


def assert_as_alone(
    cache: _native.PagedAttention, isa: str, block_size: int, queries: Sequence[Query]
) -> None:
    alone = attention(isa, block_size)
    for got, query in zip(run(cache, queries), queries, strict=True):
        (expected,) = run(alone, [query], share=False)
        np.testing.assert_array_equal(got, expected)


def twin(
    cache: _native.PagedAttention, query: Query, block_size: int, is_half: bool
) -> npt.NDArray[np.float64]:
    """One softmax over all positions, in float64."""
    kv_heads, group_heads, head_dim = SHAPE
    lanes = min(8, block_size)
    memory = cache.kv_memory.view(np.float16 if is_half else np.float32).astype(np.float64)
    panels = memory.reshape(-1, kv_heads, 2, block_size * head_dim)[list(query.table)]
    k = panels[:, :, 0].reshape(-1, kv_heads, block_size // lanes, head_dim, lanes)
    keys = k.transpose(0, 2, 4, 1, 3).reshape(-1, kv_heads, head_dim)
    v = panels[:, :, 1].reshape(-1, kv_heads, block_size, head_dim)
    values = v.transpose(0, 2, 1, 3).reshape(-1, kv_heads, head_dim)
    q = query.rows(SHAPE).astype(np.float64).reshape(-1, kv_heads, group_heads, head_dim)
    out = np.empty_like(q)
    for t in range(len(q)):
        visible = query.context_len - query.num_tokens + t + 1
        scores = np.einsum("hgd,phd->hgp", q[t], keys[:visible]) * SCALE
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[t] = np.einsum("hgp,phd->hgd", weights, values[:visible])
    return out.reshape(len(q), -1)


# --- ranges ---


@every_isa
@one_block_too
@pytest.mark.parametrize("is_half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("context_len", [1, RANGE - 1, RANGE, RANGE + 1, 2 * RANGE + 3, 1000])
def test_agrees_with_one_softmax(isa: str, block_size: int, is_half: bool, context_len: int) -> None:
    cache = attention(isa, block_size, 2, is_half)
    blocks = Blocks(block_size)
    queries = [blocks.query(context_len), blocks.query(context_len, min(context_len, 70))]
    for got, query in zip(run(cache, queries), queries, strict=True):
        assert np.abs(got - twin(cache, query, block_size, is_half)).max() <= 1e-5


@every_isa
@every_block_size
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_splitting_a_context_changes_no_bit(isa: str, block_size: int, num_threads: int) -> None:
    """One token is split into ranges; as the last row of a prompt it is not."""
    cache = attention(isa, block_size, num_threads)
    for context_len in (RANGE - 1, RANGE, RANGE + 1, 2 * RANGE + 3, 1000):
        whole = Blocks(block_size).query(context_len, context_len)
        (rows,) = run(cache, [whole])
        for num_tokens in (1, 3, 40):
            part = Query(context_len, whole.table, num_tokens)
            q = whole.rows(SHAPE)[-num_tokens:]
            starts, lens = np.array([0, num_tokens], np.int32), np.array([context_len], np.int32)
            got = cache.run(q, np.array([part.table], np.int32), starts, lens, scale=SCALE)
            np.testing.assert_array_equal(got, rows[-num_tokens:])


@every_isa
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_step_s_company_changes_no_bit(isa: str, num_threads: int) -> None:
    """Many ranges: kv heads go through attention together; alone, each is a unit."""
    blocks = Blocks(16)
    lengths = (1000, 900, 513, 257, 256, 255, 64, 7, 1)
    queries = [blocks.query(length, min(length, 1 + 17 * (i % 3))) for i, length in enumerate(lengths)]
    assert_as_alone(attention(isa, 16, num_threads), isa, 16, queries)
    assert_as_alone(attention(isa, 16, num_threads), isa, 16, queries[::-1])


# --- shared prefixes ---


@every_isa
@every_block_size
@pytest.mark.parametrize("num_sharers", [2, 3, 5, 16])
def test_sharers_get_the_bits_they_get_alone(isa: str, block_size: int, num_sharers: int) -> None:
    """Two ranges in common, ragged tails; the first sharer ends where the prefix does."""
    blocks = Blocks(block_size)
    prefix = blocks.prefix(2 * RANGE + 128)
    queries = [blocks.query(2 * RANGE + 128 + 11 * i, prefix=prefix) for i in range(num_sharers)]
    assert_as_alone(attention(isa, block_size, 2), isa, block_size, queries)


@every_isa
def test_trees_forks_and_strangers_in_one_step(isa: str) -> None:
    blocks = Blocks(16)
    root = blocks.prefix(RANGE)
    branches = [[*root, *blocks.prefix(RANGE)] for _ in range(2)]
    queries = [
        *(blocks.query(2 * RANGE + 5 + i, prefix=branches[i % 2]) for i in range(5)),
        blocks.query(RANGE + 40, prefix=root),
        blocks.query(RANGE + 30, 3, prefix=root),  # three tokens at once
        blocks.query(RANGE + 1, 3, prefix=root),  # whose first does not see all of the prefix
        blocks.query(2 * RANGE, 60, prefix=root),  # a chunk of a prompt
        blocks.query(700),
        blocks.query(90),
        Query(RANGE, tuple(root)),  # a context of exactly one range
    ]
    fork = queries[0]
    queries += [Query(fork.context_len, fork.table), Query(fork.context_len - 1, fork.table)]
    order = np.random.default_rng(0).permutation(len(queries))
    for num_threads in (1, 2, 3):
        assert_as_alone(attention(isa, 16, num_threads), isa, 16, [queries[i] for i in order])


@every_isa
@pytest.mark.parametrize("shape", [(2, 1, 8), (1, 7, 8), (1, 64, 8), (5, 2, 24)], ids=str)
def test_more_sharers_than_go_together(isa: str, shape: tuple[int, int, int]) -> None:
    blocks = Blocks(16)
    prefix = blocks.prefix(RANGE)
    queries = [blocks.query(RANGE + 1 + i % 16, prefix=prefix) for i in range(60)]
    cache = attention(isa, 16, 2, True, shape)
    shared, unshared = run(cache, queries, shape), run(cache, queries, shape, share=False)
    for query, got, expected in zip(queries, shared, unshared, strict=True):
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(got, run(cache, [query], shape)[0])


@every_isa
def test_tables_that_differ_in_one_block_are_not_shared(isa: str) -> None:
    """At the front, in the middle and at the end of the range."""
    blocks = Blocks(16)
    first = blocks.query(RANGE + 8)
    queries = [first]
    for i in (0, 7, RANGE // 16 - 1):
        table = list(first.table)
        (table[i],) = blocks.prefix(16)
        queries.append(Query(first.context_len, tuple(table)))
    assert_as_alone(attention(isa, 16, 2), isa, 16, queries)


@every_isa
def test_forks_decode_in_a_model_as_if_alone(isa: str) -> None:
    """Three layers run one plan, over and over."""
    program = toy_program(num_layers=3)
    num_blocks = 2 * RANGE // 16
    layout = toy_layout(program, block_size=16, num_blocks=num_blocks + 4)
    executor = NativeExecutor(program, layout, num_threads=2, max_num_tokens=2 * RANGE, isa=isa)
    prompt = [i * i % 500 for i in range(2 * RANGE)]
    executor.run(step_inputs([toy_sequence(prompt, range(num_blocks))]))
    forks = [toy_sequence([i], [*range(num_blocks), num_blocks + i], start=len(prompt)) for i in range(4)]
    together = executor.run(step_inputs(forks)).copy()
    for logits, fork in zip(together, forks, strict=True):
        np.testing.assert_array_equal(logits, executor.run(step_inputs([fork]))[0])


# --- errors ---


def test_names_the_bad_argument() -> None:
    sizes = {"num_layers": 1, "num_kv_heads": 1, "group_heads": 1, "num_blocks": 2}
    good: dict[str, Any] = {**sizes, "head_dim": 8, "block_size": 4}
    for name, value in [("block_size", 5), ("head_dim", 12), ("num_blocks", 0), ("isa", "abacus")]:
        with pytest.raises(ValueError, match=name):
            _native.PagedAttention(**{**good, name: value})
    cache = _native.PagedAttention(**good)
    q, tables, starts, lens = (
        np.zeros((1, 8), np.float32),
        np.array([[0, 1]], np.int32),
        np.array([0, 1], np.int32),
        np.array([5], np.int32),
    )
    assert cache.run(q, tables, starts, lens).shape == (1, 8)
    with pytest.raises(ValueError, match="block_tables"):
        cache.run(q, tables + 1, starts, lens)
    with pytest.raises(ValueError, match="context_lens"):
        cache.run(q, tables, starts, lens + 4)
    with pytest.raises(ValueError, match="query_start"):
        cache.run(q, tables, starts + 1, lens)
    with pytest.raises(ValueError, match="layer"):
        cache.run(q, tables, starts, lens, layer=1)
