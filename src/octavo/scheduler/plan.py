"""A step in the making: who computes which tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.batch import BlockCopy, SampleRow, ScheduledBatch, ScheduledSequence
from octavo.scheduler.entry import Entry
from octavo.scheduler.stop import stop_token_ids


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
    num_rounds: int = 1
    stop_token_ids: frozenset[int] = frozenset()
    """See ScheduledBatch; both for several rounds."""
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

    def most_rounds(self, max_rounds: int) -> int:
        """Times that the step may be done in a row, to the end of the shortest answer at most.

        Once, unless each sequence computes and chooses one token, and chooses the next ones alike.
        """
        is_one_each = len(self.samples) == len(self.sequences) > 0 and not self.admitted
        if max_rounds == 1 or not is_one_each or not all(sample.can_run_on for sample in self.samples):
            return 1
        if any(len(sequence.token_ids) > 1 for sequence in self.sequences):
            return 1
        return min(max_rounds, *(entry.end_len - entry.seq.num_tokens for entry in self.entries))

    def repeat(self, num_rounds: int, eos_token_ids: frozenset[int]) -> None:
        self.num_rounds = num_rounds
        for sample in self.samples:
            self.stop_token_ids |= stop_token_ids(sample.params, eos_token_ids)

    def to_batch(self, copies: tuple[BlockCopy, ...]) -> ScheduledBatch:
        self.batch = ScheduledBatch(
            step_id=self.step_id,
            sequences=tuple(self.sequences),
            logits_for=tuple(self.logits_for),
            samples=tuple(self.samples),
            copies=copies,
            num_tokens=sum(len(sequence.token_ids) for sequence in self.sequences),
            admitted=tuple(e.seq.request.request_id for e in self.admitted if not e.was_admitted),
            num_rounds=self.num_rounds,
            stop_token_ids=tuple(self.stop_token_ids),
        )
        return self.batch
