"""A KV memory of plain integers and a model that reads it: what tests run instead of tensors.

The value of a slot stands for K and V: it depends on its token and on every token before it, as K and V do
in a deeper layer. So a block that is found under the wrong prefix, copied too early, or overwritten reads
wrong.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import replace

from octavo.batch import BlockCopy, SampledToken, SampledTokens, ScheduledBatch

VOCAB_SIZE = 50
TEXT = [random.Random(7 * i).randrange(40) for i in range(600)]
"""For prompts: no part of it comes again."""
GARBAGE = -7


def chain(token_ids: Sequence[int], seed: Hashable = "") -> list[int]:
    """The right value of each position of a sequence."""
    values = []
    value = hash(("start", seed)) % 1_000_003
    for token_id in token_ids:
        value = (value * 31 + token_id + 1) % 1_000_003
        values.append(value)
    return values


def next_token(value: int, index: int = 0) -> int:
    """What the model says after a position with this value, to choice `index`."""
    return (value // 7 + 3 * index) % VOCAB_SIZE


def answer(prompt: Sequence[int], num_tokens: int, index: int = 0, seed: Hashable = "") -> list[int]:
    """The tokens that a choice gets when nothing is cached, shared, cut or preempted."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(chain(token_ids, seed)[-1], index))
    return token_ids[len(prompt) :]


class PagedMemory:
    """num_blocks × block_size slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [[GARBAGE] * block_size for _ in range(num_blocks)]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        for block_copy in copies:
            self.blocks[block_copy.target] = list(self.blocks[block_copy.source])

    def write(self, table: Sequence[int], start: int, token_ids: Sequence[int], seed: Hashable = "") -> None:
        """Compute the positions from `start` on, from what the table holds before them."""
        value = self.read(table, start)[-1] if start else hash(("start", seed)) % 1_000_003
        for position, token_id in enumerate(token_ids, start):
            value = (value * 31 + token_id + 1) % 1_000_003
            block, offset = divmod(position, self.block_size)
            self.blocks[table[block]][offset] = value

    def read(self, table: Sequence[int], num_tokens: int) -> list[int]:
        size = self.block_size
        return [self.blocks[table[position // size]][position % size] for position in range(num_tokens)]

    def run(self, batch: ScheduledBatch, seeds: Sequence[Hashable] = ()) -> SampledTokens:
        """A batch's rounds: each as a step of its own, on what the one before gave.

        `seeds` are by sequence id, "" where it is shorter.
        """
        tokens = self._run_once(batch, seeds)
        given = tokens
        for _ in range(batch.num_rounds - 1):
            if any(token.token_id in batch.stop_token_ids for token in given):
                break
            batch = _next_round(batch, given)
            given = self._run_once(batch, seeds)
            tokens += given
        return SampledTokens(tokens)

    def _run_once(self, batch: ScheduledBatch, seeds: Sequence[Hashable]) -> tuple[SampledToken, ...]:
        """One step: copies in order, then all writes, then the tokens of the sample rows."""
        self.copy(batch.copies)
        slots = set()
        for scheduled in batch.sequences:
            seed = seeds[scheduled.seq_id] if scheduled.seq_id < len(seeds) else ""
            self.write(scheduled.block_table, scheduled.start, scheduled.token_ids, seed)
            for position in range(scheduled.start, scheduled.context_len):
                block, offset = divmod(position, self.block_size)
                slots.add((scheduled.block_table[block], offset))
        assert len(slots) == batch.num_tokens, "two tokens of a step share a slot"
        last = [
            self.read(batch.sequences[index].block_table, batch.sequences[index].context_len)[-1]
            for index in batch.logits_for
        ]
        return tuple(SampledToken(row.seq_id, next_token(last[row.row], row.index)) for row in batch.samples)


def _next_round(batch: ScheduledBatch, given: Sequence[SampledToken]) -> ScheduledBatch:
    assert [token.seq_id for token in given] == [sequence.seq_id for sequence in batch.sequences]
    sequences = [
        replace(sequence, start=sequence.context_len, token_ids=(token.token_id,))
        for sequence, token in zip(batch.sequences, given, strict=True)
    ]
    return replace(batch, sequences=tuple(sequences), copies=())
