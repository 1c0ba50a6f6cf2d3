"""The face that all executors share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """One step as flat arrays, all int32 and C-contiguous. T tokens of S sequences; R rows of logits.

    Tokens of sequence s are [query_start[s], query_start[s + 1]) and stand at consecutive positions.
    """

    token_ids: Int32Array
    """[T]"""
    positions: Int32Array
    """[T]"""
    slot_mapping: Int32Array
    """[T] block · block_size + offset, where the token's K and V go. No slot stands twice."""
    block_tables: Int32Array
    """[S, W] rows padded with 0 beyond the sequence's blocks"""
    query_start: Int32Array
    """[S + 1]"""
    context_lens: Int32Array
    """[S] positions in the cache after this step: start + tokens of this step"""
    logits_rows: Int32Array
    """[R] token rows (0..T-1), ascending"""
    copies: Int32Array
    """[C, 2] (source, target) blocks, copied before anything is written"""


class Executor(Protocol):
    """Runs a Program over K and V memory that it was given. Not safe for two threads at once."""

    def run(self, inputs: StepInputs) -> FloatArray:
        """Writes K and V at the slots and returns logits [R, vocab_size].

        The array is valid until the next run. Raises ValueError, before it writes, for ids or shapes out
        of range.
        """
        ...

    def run_best(
        self, inputs: StepInputs, *, num_rounds: int = 1, stop_token_ids: Sequence[int] = ()
    ) -> tuple[Int32Array, FloatArray]:
        """As `run`, for those who want the likeliest token of each row and nothing else.

        Returns ids [N, R] and their logits [N, R], which stay valid: numpy's argmax of each row that run
        would have returned, so the first NaN if there is one, and the lowest id among equals.

        N is 1, or up to num_rounds where each sequence has one token and its row of logits: then steps follow
        in which every sequence computes the token that the one before gave it, at the next position of its
        block table. They end early with a round that gives one of stop_token_ids, and before one whose best
        logit is not finite. Raises ValueError for more rounds than one of another step, or than the tables
        have room for.
        """
        ...
