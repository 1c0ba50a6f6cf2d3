"""Teacher-forced passes straight through an executor, without scheduler or sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from octavo.kernels.executor import Executor, StepInputs

Floats = npt.NDArray[np.float64]


def forward_chunks(
    executor: Executor, token_ids: Sequence[int], *, chunk: int = 256, block_size: int = 16
) -> Iterator[tuple[int, Floats]]:
    """Run one sequence in blocks 0, 1, 2, … and yield (start, log-probabilities [chunk, vocab_size])."""
    table = np.arange(-(-len(token_ids) // block_size), dtype=np.int32)
    for start in range(0, len(token_ids), chunk):
        part = np.array(token_ids[start : start + chunk], np.int32)
        end = start + len(part)
        positions = np.arange(start, end, dtype=np.int32)
        logits = executor.run(
            StepInputs(
                token_ids=part,
                positions=positions,
                slot_mapping=positions,
                block_tables=table[None, : -(-end // block_size)].copy(),
                query_start=np.array([0, len(part)], np.int32),
                context_lens=np.array([end], np.int32),
                logits_rows=np.arange(len(part), dtype=np.int32),
                copies=np.zeros((0, 2), np.int32),
            )
        )
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64))
        yield start, shifted - log_sums


def token_logprobs(executor: Executor, token_ids: Sequence[int]) -> Floats:
    """Log-probability [len(token_ids) - 1] of each token after the first, given those before it."""
    found = np.empty(len(token_ids) - 1)
    for start, rows in forward_chunks(executor, token_ids):
        following = token_ids[start + 1 : start + 1 + len(rows)]
        found[start : start + len(following)] = rows[np.arange(len(following)), following]
    return found
