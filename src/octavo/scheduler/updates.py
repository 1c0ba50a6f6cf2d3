"""What the scheduler reports of a sequence."""

from __future__ import annotations

from octavo.batch import SampledToken, SequenceUpdate
from octavo.scheduler.entry import Entry
from octavo.scheduler.stop import Stop


def token_update(entry: Entry, token: SampledToken, stop: Stop | None) -> SequenceUpdate:
    """A new token, the last one if `stop` says so."""
    seq = entry.seq
    return SequenceUpdate(
        seq.request.request_id,
        seq.seq_id,
        seq.index,
        token.token_id,
        token.logprobs,
        seq.finish_reason,
        stop.stop_token_id if stop is not None else None,
        None,
        seq.num_cached,
    )


def end_update(entry: Entry, error: str | None = None) -> SequenceUpdate:
    """An end without a token: abort or error."""
    seq = entry.seq
    return SequenceUpdate(
        seq.request.request_id,
        seq.seq_id,
        seq.index,
        finish_reason=seq.finish_reason,
        error=error,
        num_cached_tokens=seq.num_cached,
    )
