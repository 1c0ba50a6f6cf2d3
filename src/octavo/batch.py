"""What travels between the stages of a step: frozen, ids and counts only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.params import SamplingParams
from octavo.request import FinishReason


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy all layers' K and V of block `source` into `target`, before the step writes anything."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's share of a step: positions [start, start + len(token_ids)) are computed."""

    seq_id: int
    token_ids: tuple[int, ...]
    start: int
    block_table: Sequence[int]
    """The blocks of positions [0, start + len(token_ids)), in order. Read-only, valid until commit."""
    num_prompt_tokens: int = 0
    """Length of the sequence's prompt: positions before it are the client's, those after it the model's."""

    @property
    def context_len(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One token to choose. Several rows share a `row` when a request's n sequences start from one prefill."""

    seq_id: int
    row: int
    """Row of the logits array: the k-th scheduled sequence that closes its gap has row k."""
    params: SamplingParams
    seed: int
    index: int
    """Which of the request's n choices."""
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """Read-only, valid until commit. Its length is the output position of the new token."""

    @property
    def masks_stops(self) -> bool:
        """Whether it is too early for a token that ends the answer."""
        return len(self.output_token_ids) < self.params.min_tokens

    @property
    def takes_best(self) -> bool:
        """Whether the token is the likeliest of its row, and nothing else of the row matters."""
        params = self.params
        is_changed = params.logit_bias or params.has_penalties or self.masks_stops
        return params.is_greedy and params.logprobs is None and not is_changed

    @property
    def can_run_on(self) -> bool:
        """Whether the tokens after this one are chosen alike, and tokens alone decide when to stop."""
        return self.takes_best and not self.params.stop


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """What one step computes."""

    step_id: int
    sequences: tuple[ScheduledSequence, ...]
    logits_for: tuple[int, ...]
    """Indices into `sequences`, ascending: those whose last token's logits are wanted, in row order."""
    samples: tuple[SampleRow, ...]
    copies: tuple[BlockCopy, ...]
    num_tokens: int
    admitted: tuple[str, ...] = ()
    """Requests that are scheduled for the first time."""
    num_rounds: int = 1
    """Most times that the step is done in a row, each sequence computing the token that it got the time
    before. Above 1 only where each has one token, and blocks for those to come."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that may end a sequence: a round that gives one is the last."""

    @property
    def is_empty(self) -> bool:
        return not self.sequences

    @property
    def takes_best(self) -> bool:
        """Whether all samples do: then the logits need not be kept."""
        return all(sample.takes_best for sample in self.samples)

    def num_rounds_of(self, tokens: SampledTokens) -> int:
        """How many rounds gave them. Raises ValueError unless they are the samples', once for each round."""
        expected = [sample.seq_id for sample in self.samples]
        num_rounds = max(len(tokens.tokens) // len(expected), 1) if expected else 1
        if num_rounds > self.num_rounds or [t.seq_id for t in tokens.tokens] != expected * num_rounds:
            raise ValueError("tokens do not belong to the batch's samples")
        return num_rounds


@dataclass(frozen=True, slots=True)
class BestTokens:
    """The likeliest token of each row of logits, which were not kept, round by round."""

    token_ids: Sequence[Sequence[int]]
    """[round][row]; one round or more."""
    logits: Sequence[Sequence[float]]
    """Of those tokens. Not finite where the row's logits are no numbers."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability under the model, before any sampling parameter. Rank 1 is the likeliest."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class SampledToken:
    seq_id: int
    token_id: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    """First the sampled token, then params.logprobs most likely ones; None when not asked for."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    tokens: tuple[SampledToken, ...]
    """In the order of ScheduledBatch.samples, as many times as there were rounds."""


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """What a step changed for one sequence."""

    request_id: str
    seq_id: int
    index: int
    token_id: int | None = None
    """The new token; None when the sequence only ended (abort, error)."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The token of params.stop_token_ids that ended the sequence; None for EOS."""
    error: str | None = None
    num_cached_tokens: int = 0
