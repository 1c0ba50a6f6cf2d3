"""What users get: whole answers (LLM) and pieces of them (streams)."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.batch import TokenLogprob


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability, with the names of vLLM's offline API."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one step added to one choice of a request."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    """One entry a token: first the sampled token, then the most likely ones."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it; None for EOS and length."""
    error: str | None = None
    """Set with finish_reason "error"."""


@dataclass(frozen=True, slots=True)
class RequestDelta:
    """What one step added to a request."""

    request_id: str
    choices: tuple[ChoiceDelta, ...]
    num_cached_tokens: int
    """Prompt tokens that the prefix cache gave."""
    finished: bool
    """All choices have ended; this is the last delta."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One whole answer."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
