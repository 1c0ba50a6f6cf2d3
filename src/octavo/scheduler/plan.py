"""A step in the making: who computes which tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.batch import BlockCopy, SampleRow, ScheduledBatch, ScheduledSequence
from octavo.scheduler.entry import Entry


@dataclass(slots=True)
class StepPlan:
    """Filled by schedule(), read by commit() and fail()."""

    step_id: int
    budget: int
    """Tokens that may still be scheduled."""
    entries: list[Entry] = field(default_factory=list)
    sequences: list[ScheduledSequence] = field(default_factory=list)
    logits_for: list[int] = field(default_factory=list)
    samplers: list[Entry] = field(default_factory=list)
    """The entry of each sample row."""
    samples: list[SampleRow] = field(default_factory=list)
    admitted: list[Entry] = field(default_factory=list)
    forked: list[tuple[Entry, list[Entry]]] = field(default_factory=list)
    has_preempted: bool = False
    batch: ScheduledBatch | None = None

    def add(self, entry: Entry, num_tokens: int, block_table: list[int]) -> None:
        """Compute the next num_tokens of the entry's gap; block_table covers them."""
        seq = entry.seq
        start = seq.num_computed
        token_ids = tuple(seq.token_ids[start : start + num_tokens])
        self.entries.append(entry)
        self.sequences.append(
            ScheduledSequence(seq.seq_id, token_ids, start, block_table, seq.num_prompt_tokens)
        )
        self.budget -= num_tokens

    def sample(self, entries: list[Entry]) -> None:
        """Choose a token for each entry from the logits of the sequence that was added last."""
        row = len(self.logits_for)
        self.logits_for.append(len(self.sequences) - 1)
        for entry in entries:
            seq, request = entry.seq, entry.seq.request
            self.samplers.append(entry)
            self.samples.append(
                SampleRow(
                    seq.seq_id,
                    row,
                    request.params,
                    request.seed,
                    seq.index,
                    request.prompt_token_ids,
                    seq.output_token_ids,
                )
            )

    def to_batch(self, copies: tuple[BlockCopy, ...]) -> ScheduledBatch:
        self.batch = ScheduledBatch(
            step_id=self.step_id,
            sequences=tuple(self.sequences),
            logits_for=tuple(self.logits_for),
            samples=tuple(self.samples),
            copies=copies,
            num_tokens=sum(len(sequence.token_ids) for sequence in self.sequences),
            admitted=tuple(e.seq.request.request_id for e in self.admitted if not e.was_admitted),
        )
        return self.batch
