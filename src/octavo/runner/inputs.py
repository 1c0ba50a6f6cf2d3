"""ScheduledBatch → StepInputs: pure index arithmetic, no model."""

from __future__ import annotations

from itertools import chain

import numpy as np

from octavo.batch import ScheduledBatch
from octavo.kernels.executor import Int32Array, StepInputs


def build_inputs(batch: ScheduledBatch, block_size: int) -> StepInputs:
    """Lay one step out as flat int32 arrays (shapes: see StepInputs).

    slot_mapping is the address translation: block table entry of position // block_size, times block_size,
    plus position % block_size.
    """
    sequences = batch.sequences
    counts = np.fromiter((len(s.token_ids) for s in sequences), np.int32, count=len(sequences))
    starts = np.fromiter((s.start for s in sequences), np.int32, count=len(sequences))
    query_start = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    num_tokens = int(query_start[-1])
    token_ids = np.fromiter(chain.from_iterable(s.token_ids for s in sequences), np.int32, count=num_tokens)
    positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(starts - query_start[:-1], counts)
    block_tables = _block_tables(batch)
    owners = np.repeat(np.arange(len(sequences)), counts)
    slot_mapping = block_tables[owners, positions // block_size] * block_size + positions % block_size
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slot_mapping.astype(np.int32, copy=False),
        block_tables=block_tables,
        query_start=query_start,
        context_lens=starts + counts,
        logits_rows=query_start[1:][list(batch.logits_for)] - 1,
        copies=np.array([(c.source, c.target) for c in batch.copies], np.int32).reshape(-1, 2),
    )


def _block_tables(batch: ScheduledBatch) -> Int32Array:
    width = max((len(s.block_table) for s in batch.sequences), default=0)
    tables = np.zeros((len(batch.sequences), width), np.int32)
    for row, sequence in zip(tables, batch.sequences, strict=True):
        row[: len(sequence.block_table)] = sequence.block_table
    return tables
