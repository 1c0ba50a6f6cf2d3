"""Address translation, checked against a walk over every token."""

from __future__ import annotations

import random

import numpy as np

from octavo.batch import BlockCopy, ScheduledBatch, ScheduledSequence
from octavo.runner.inputs import build_inputs


def batch_of(
    *sequences: ScheduledSequence, logits_for: tuple[int, ...] = (), copies: tuple[BlockCopy, ...] = ()
):  # type: ignore[no-untyped-def]
    return ScheduledBatch(
        step_id=0,
        sequences=sequences,
        logits_for=logits_for,
        samples=(),
        copies=copies,
        num_tokens=sum(len(s.token_ids) for s in sequences),
    )


def test_position_37_of_table_0_5_9_is_block_9_offset_5() -> None:
    sequence = ScheduledSequence(seq_id=1, token_ids=(7,), start=37, block_table=(0, 5, 9))
    inputs = build_inputs(batch_of(sequence, logits_for=(0,)), block_size=16)
    assert inputs.slot_mapping.tolist() == [9 * 16 + 5]
    assert inputs.context_lens.tolist() == [38]
    assert inputs.logits_rows.tolist() == [0]


def test_a_mixed_step_equals_a_walk_over_its_tokens() -> None:
    rng = random.Random(0)
    for _ in range(50):
        block_size = rng.choice([4, 8, 16])
        sequences = []
        for seq_id in range(rng.randint(1, 5)):
            start, count = rng.randint(0, 40), rng.randint(1, 9)
            num_blocks = -(-(start + count) // block_size)
            table = tuple(rng.sample(range(1000), k=num_blocks))
            sequences.append(ScheduledSequence(seq_id, tuple(rng.choices(range(500), k=count)), start, table))
        wanted = tuple(i for i in range(len(sequences)) if rng.random() < 0.5)
        inputs = build_inputs(batch_of(*sequences, logits_for=wanted, copies=(BlockCopy(3, 4),)), block_size)
        token_ids, positions, slots, last_rows = [], [], [], []
        for sequence in sequences:
            for offset, token_id in enumerate(sequence.token_ids):
                position = sequence.start + offset
                block, slot = divmod(position, block_size)
                token_ids.append(token_id)
                positions.append(position)
                slots.append(sequence.block_table[block] * block_size + slot)
            last_rows.append(len(token_ids) - 1)
        assert inputs.token_ids.tolist() == token_ids
        assert inputs.positions.tolist() == positions
        assert inputs.slot_mapping.tolist() == slots
        assert inputs.logits_rows.tolist() == [last_rows[i] for i in wanted]
        assert inputs.copies.tolist() == [[3, 4]]
        for row, sequence in zip(inputs.block_tables, sequences, strict=True):
            assert tuple(row[: len(sequence.block_table)]) == sequence.block_table
        arrays = [getattr(inputs, name) for name in inputs.__slots__]
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
