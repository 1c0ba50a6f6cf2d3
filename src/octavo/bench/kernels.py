"""Kernels under a clock, each as a share of what the machine allows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from octavo import _native
from octavo.bench.machine import Limits, measure_beside
from octavo.bench.random_model import random_matrix
from octavo.kernels.weights import WeightType

MATMUL_SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576))
"""(rows, cols) of SmolLM2-135M: attention, gate and up, down, head."""
MATMUL_ROWS = (1, 2, 4, 8, 16, 32, 128)
"""Tokens at once."""
COLD_BYTES = 192 << 20
"""Copies of a matrix, or of a layer's K and V, up to this size keep what is read out of the caches."""
MAX_COPIES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulResult:
    """One matmul on all threads: `num_tokens` rows of activations by a weight matrix."""

    weight_type: str
    rows: int
    cols: int
    num_tokens: int
    cold_seconds: float
    """With weights from memory, as in a step."""
    warm_seconds: float
    """With weights in the caches, as far as they fit."""
    bandwidth_share: float
    """Weight bytes a second, cold, as a share of the stream."""
    arithmetic_share: float | None
    """Operations a second, warm, as a share of the rate from registers; None where that is unknown."""
    group_share: float | None
    """The same of a bare loop of 4-bit groups over the L1 cache; None for other weights too."""
    limit_share: float
    """The time that memory and arithmetic allow, whichever is longer, as a share of the time taken cold."""


def measure_matmul(
    weight_type: WeightType, rows: int, cols: int, num_tokens: Sequence[int], limits: Limits, *, repeats: int
) -> Iterator[MatmulResult]:
    """One result for each number of tokens, as shares of limits measured beside it."""
    data = random_matrix(rows, cols, weight_type, np.random.default_rng(0))
    num_copies = max(1, min(MAX_COPIES, COLD_BYTES // data.size))
    warm, cold = (
        _native.LinearTimer(
            data,
            weight_type.value,
            rows,
            cols,
            num_copies=copies,
            num_threads=limits.num_threads,
            isa=limits.isa,
        )
        for copies in (1, num_copies)
    )
    is_float = weight_type.group_size == 1
    has_nibbles = weight_type in (WeightType.Q4_0, WeightType.Q4_1)

    def seconds(tokens: int) -> tuple[float, float]:
        return median(warm.measure(tokens, repeats)), median(cold.measure(tokens, repeats))

    figures = measure_beside(limits, [partial(seconds, tokens) for tokens in num_tokens])
    for tokens, ((warm_seconds, cold_seconds), now) in zip(num_tokens, figures, strict=True):
        rate = now.fma_ops_per_second if is_float else now.int8_ops_per_second
        group_rate = now.group_ops_per_second if has_nibbles else None
        num_ops = 2 * rows * cols * tokens
        memory_seconds = data.size / now.stream_bytes_per_second
        arithmetic_seconds = 0.0 if rate is None else num_ops / rate
        yield MatmulResult(
            weight_type=weight_type.name,
            rows=rows,
            cols=cols,
            num_tokens=tokens,
            cold_seconds=cold_seconds,
            warm_seconds=warm_seconds,
            bandwidth_share=memory_seconds / cold_seconds,
            arithmetic_share=None if rate is None else arithmetic_seconds / warm_seconds,
            group_share=None if group_rate is None else num_ops / group_rate / warm_seconds,
            limit_share=max(memory_seconds, arithmetic_seconds) / cold_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What attention needs to know of a model; by default SmolLM2-135M."""

    num_kv_heads: int = 3
    group_heads: int = 3
    """Query heads a kv head."""
    head_dim: int = 64

    @property
    def width(self) -> int:
        return self.num_kv_heads * self.group_heads * self.head_dim

    @property
    def bytes_per_token(self) -> int:
        """Of K and V in float16, in one layer."""
        return 2 * 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionResult:
    """Attention of one layer on all threads, over float16 K and V."""

    phase: str
    """decode: one query a sequence. prefill: the last `num_queries` positions of one sequence."""
    context_len: int
    num_seqs: int
    num_queries: int
    block_size: int
    contiguous_seconds: float
    """A sequence's whole context is one block: nothing is paged."""
    in_order_seconds: float
    """Blocks of block_size tokens, in the order of the memory: a table is followed."""
    scattered_seconds: float
    """The same blocks in random order."""
    paging_cost: float
    """How much longer blocks in order take than contiguous, median of rounds: 0.02 is 2 %."""
    scatter_cost: float
    """How much longer scattered blocks take than blocks in order, median of rounds."""
    bandwidth_share: float
    """K and V bytes a second, scattered, as a share of the stream."""
    arithmetic_share: float | None
    """Operations a second, scattered, as a share of the fma rate."""


class _AttentionCase:
    """K and V for one shape of batch; layers are used in turn, so that K and V come from memory."""

    def __init__(
        self,
        heads: HeadShape,
        context_len: int,
        num_seqs: int,
        num_queries: int,
        block_size: int,
        limits: Limits,
    ) -> None:
        blocks_a_seq = -(-context_len // block_size)
        num_blocks = num_seqs * blocks_a_seq
        layer_bytes = num_blocks * block_size * heads.bytes_per_token
        self._num_layers = max(1, min(64, COLD_BYTES // layer_bytes))
        self._attention = _native.PagedAttention(
            num_layers=self._num_layers,
            num_kv_heads=heads.num_kv_heads,
            group_heads=heads.group_heads,
            head_dim=heads.head_dim,
            block_size=block_size,
            num_blocks=num_blocks,
            num_threads=limits.num_threads,
            isa=limits.isa,
        )
        rng = np.random.default_rng(0)
        memory = self._attention.kv_memory.reshape(-1)
        pool = (rng.standard_normal(1 << 19) * 0.5).astype(np.float16).view(np.uint8)
        for begin in range(0, memory.size, pool.size):
            memory[begin : begin + pool.size] = pool[: memory.size - begin]
        self._q = rng.standard_normal((num_seqs * num_queries, heads.width), np.float32)
        in_order = np.arange(num_blocks, dtype=np.int32)
        self._tables = {
            "in order": in_order.reshape(num_seqs, -1),
            "scattered": rng.permutation(in_order).reshape(num_seqs, -1),
        }
        self._query_start = (np.arange(num_seqs + 1) * num_queries).astype(np.int32)
        self._context_lens = np.full(num_seqs, context_len, np.int32)
        self._scale = heads.head_dim**-0.5
        self._next_layer = 0

    def seconds(self, order: str) -> float:
        """Of one pass over a layer, "in order" or "scattered": the mean over some milliseconds of passes."""
        num_passes, started, elapsed = 0, time.perf_counter(), 0.0
        while elapsed < 0.01 or num_passes < 2:
            self._attention.run(
                self._q,
                self._tables[order],
                self._query_start,
                self._context_lens,
                layer=self._next_layer,
                scale=self._scale,
                share_prefixes=False,
            )
            self._next_layer = (self._next_layer + 1) % self._num_layers
            num_passes += 1
            elapsed = time.perf_counter() - started
        return elapsed / num_passes


def measure_attention(
    limits: Limits,
    *,
    context_len: int,
    num_seqs: int = 1,
    num_queries: int = 1,
    block_size: int = 16,
    repeats: int = 5,
    heads: HeadShape | None = None,
) -> AttentionResult:
    """The three layouts in turn, medians. num_queries 1 is decoding; more are the end of a prompt."""
    heads = heads or HeadShape()
    one_block = 1 << max(context_len - 1, 3).bit_length()
    whole, paged = (
        _AttentionCase(heads, context_len, num_seqs, num_queries, size, limits)
        for size in (one_block, block_size)
    )
    rounds = [
        (whole.seconds("in order"), paged.seconds("in order"), paged.seconds("scattered"))
        for _ in range(repeats + 1)
    ][1:]  # the first warms up
    contiguous, in_order, scattered = (median(times) for times in zip(*rounds, strict=True))
    num_bytes = num_seqs * context_len * heads.bytes_per_token
    mean_context = context_len - (num_queries - 1) / 2
    num_ops = 4 * num_seqs * num_queries * mean_context * heads.width
    fma = limits.fma_ops_per_second
    return AttentionResult(
        phase="decode" if num_queries == 1 else "prefill",
        context_len=context_len,
        num_seqs=num_seqs,
        num_queries=num_queries,
        block_size=block_size,
        contiguous_seconds=contiguous,
        in_order_seconds=in_order,
        scattered_seconds=scattered,
        paging_cost=median(ordered / one for one, ordered, _ in rounds) - 1,
        scatter_cost=median(random / ordered for _, ordered, random in rounds) - 1,
        bandwidth_share=num_bytes / scattered / limits.stream_bytes_per_second,
        arithmetic_share=None if fma is None else num_ops / scattered / fma,
    )
