"""ScheduledBatch → StepInputs: pure index arithmetic, no model."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from octavo.batch import ScheduledBatch
from octavo.kernels.executor import Int32Array, StepInputs


def build_inputs(batch: ScheduledBatch, block_size: int) -> StepInputs:
    """Lay one step out as flat int32 arrays (shapes: see StepInputs).

    slot_mapping is the address translation: block table entry of position // block_size, times block_size,
    plus position % block_size. Lists first: for a few dozen tokens they are faster than numpy.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for sequence in batch.sequences:
        own = range(sequence.start, sequence.context_len)
        table = sequence.block_table
        token_ids += sequence.token_ids
        positions += own
        slots += [table[p // block_size] * block_size + p % block_size for p in own]
    query_start = [0, *accumulate(len(sequence.token_ids) for sequence in batch.sequences)]
    return StepInputs(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        block_tables=_block_tables(batch),
        query_start=np.array(query_start, np.int32),
        context_lens=np.array([sequence.context_len for sequence in batch.sequences], np.int32),
        logits_rows=np.array([query_start[index + 1] - 1 for index in batch.logits_for], np.int32),
        copies=np.array([(c.source, c.target) for c in batch.copies], np.int32).reshape(-1, 2),
    )


def _block_tables(batch: ScheduledBatch) -> Int32Array:
    width = max((len(s.block_table) for s in batch.sequences), default=0)
    tables = np.zeros((len(batch.sequences), width), np.int32)
    for row, sequence in zip(tables, batch.sequences, strict=True):
        row[: len(sequence.block_table)] = sequence.block_table
    return tables
