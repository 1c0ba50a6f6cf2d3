"""Compiled kernels and the executor. Internal: octavo.kernels.native is the face."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

default_isa: str
available_isas: list[str]

class Executor:
    """A program, packed and compiled, with its K and V memory. See octavo.kernels.native.NativeExecutor."""

    def __init__(
        self,
        program: dict[str, Any],
        layout: dict[str, Any],
        *,
        num_threads: int,
        max_num_tokens: int,
        isa: str | None = None,
    ) -> None: ...
    def run(
        self,
        token_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        slot_mapping: npt.NDArray[np.int32],
        block_tables: npt.NDArray[np.int32],
        query_start: npt.NDArray[np.int32],
        context_lens: npt.NDArray[np.int32],
        logits_rows: npt.NDArray[np.int32],
        copies: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.float32]: ...
    def run_best(
        self,
        token_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        slot_mapping: npt.NDArray[np.int32],
        block_tables: npt.NDArray[np.int32],
        query_start: npt.NDArray[np.int32],
        context_lens: npt.NDArray[np.int32],
        logits_rows: npt.NDArray[np.int32],
        copies: npt.NDArray[np.int32],
        *,
        num_rounds: int = 1,
        stop_token_ids: Sequence[int] = (),
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """See octavo.kernels.executor.Executor.run_best."""

    def measure_phases(self, on: bool) -> None:
        """Whether the time of steps is taken by kind of phase; off at first."""

    def phase_times(self) -> dict[str, float]:
        """Seconds since the last call: threads' time by kind of phase, summed; "step": the caller's."""

    @property
    def isa(self) -> str: ...
    @property
    def kv_memory(self) -> npt.NDArray[np.uint8]: ...

class TokenSampler:
    """Chooses tokens on the threads of an executor. See octavo.kernels.native.NativeExecutor.choose_tokens.

    samples have the attributes of octavo.batch.SampleRow. Every id of the vocabulary has a column of logits.
    """

    def __init__(self, executor: Executor, vocab_size: int) -> None: ...
    def choose(
        self,
        logits: npt.NDArray[np.float32],
        samples: Sequence[Any],
        uniforms: Sequence[float],
        masked: Sequence[Collection[int]],
    ) -> list[tuple[int, float, list[tuple[int, float, int]] | None]]:
        """A token, the best score, and (token, log-probability, rank) entries, for each sample."""

class PackedMatrix:
    """A weight matrix, repacked. data: uint8, all rows in GGUF format; type: GGUF's type id."""

    def __init__(self, data: npt.NDArray[np.uint8], type: int, rows: int, cols: int) -> None: ...
    @property
    def num_bytes(self) -> int: ...

def linear(
    packed: PackedMatrix,
    x: npt.NDArray[np.float32],
    isa: str = "",
    accumulate_into: npt.NDArray[np.float32] | None = None,
    tiles: tuple[int, int] | None = None,
) -> npt.NDArray[np.float32]:
    """x [m, cols] by the packed matrix [rows, cols]: [m, rows]."""

def quantize_row(
    x: npt.NDArray[np.float32], isa: str = ""
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Quants, factors, sums and units of rows x [m, cols]: a value is unit · factor · quant."""

def dequantize_rows(
    packed: PackedMatrix, row_ids: npt.NDArray[np.int64], isa: str = ""
) -> npt.NDArray[np.float32]:
    """Rows of a packed matrix, as the embedding lookup reads them."""

def stream_rates(num_bytes: int, num_threads: int, repeats: int, isa: str = "") -> list[float]:
    """Bytes a second of reading num_bytes (whole MiB) from memory once, a repetition."""

def loop_rates(kind: str, num_threads: int, repeats: int, isa: str = "") -> list[float] | None:
    """Operations a second, a repetition; None where the ISA has no loop.

    kind: fma or int8, from registers; groups, what a matmul of 4-bit weights consists of, from the L1 cache.
    """

def phase_seconds(num_threads: int, repeats: int) -> list[float]:
    """Seconds that a phase of the thread team takes beyond its work, a repetition."""

class LinearTimer:
    """A matmul under a clock, on all threads. data: uint8, all rows in GGUF format; type: GGUF's type id."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        type: int,
        rows: int,
        cols: int,
        *,
        num_copies: int,
        num_threads: int,
        isa: str = "",
    ) -> None: ...
    def measure(self, m: int, repeats: int) -> list[float]:
        """Seconds of a matmul with m rows of activations, a repetition."""
    @property
    def matrix_bytes(self) -> int:
        """Bytes of one packed copy."""

class PagedAttention:
    """Attention over K and V memory of its own, with its own threads: for tests and benchmarks."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        group_heads: int,
        head_dim: int,
        block_size: int,
        num_blocks: int,
        is_half: bool = True,
        num_threads: int = 1,
        isa: str = "",
    ) -> None:
        """group_heads: query heads a kv head. Raises ValueError naming the argument."""

    @property
    def kv_memory(self) -> npt.NDArray[np.uint8]:
        """All layers, laid out as octavo.kernels.kv_layout says; zero at first."""

    def run(
        self,
        q: npt.NDArray[np.float32],
        block_tables: npt.NDArray[np.int32],
        query_start: npt.NDArray[np.int32],
        context_lens: npt.NDArray[np.int32],
        *,
        layer: int = 0,
        scale: float = 1.0,
        share_prefixes: bool = True,
    ) -> npt.NDArray[np.float32]:
        """Attention of the tokens q [T, query heads * head_dim]: the same shape.

        The int32 arrays are those of StepInputs. share_prefixes: let sequences whose tables agree over a
        range go through it together; changes no bit. Raises ValueError naming the array.
        """
