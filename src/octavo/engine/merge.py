"""Several pieces of an answer as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.engine.outputs import ChoiceDelta, RequestDelta


def merge(deltas: list[RequestDelta]) -> RequestDelta:
    """Several deltas of one request as one: texts and tokens joined choice by choice."""
    if len(deltas) == 1:
        return deltas[0]
    choices = join_each(sorted((c for delta in deltas for c in delta.choices), key=lambda c: c.index))
    last = deltas[-1]
    return RequestDelta(last.request_id, tuple(choices), last.num_cached_tokens, last.finished)


def join_each(deltas: Iterable[ChoiceDelta]) -> list[ChoiceDelta]:
    """One delta a choice, in the order in which the choices first come."""
    parts: dict[int, list[ChoiceDelta]] = {}
    for delta in deltas:
        parts.setdefault(delta.index, []).append(delta)
    return [join(index, own) for index, own in parts.items()]


def join(index: int, parts: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """Consecutive deltas of one choice as one, under this index."""
    if len(parts) == 1 and parts[0].index == index:
        return parts[0]
    last = parts[-1]
    has_logprobs = any(part.logprobs is not None for part in parts)
    return ChoiceDelta(
        index=index,
        text="".join(part.text for part in parts),
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        logprobs=tuple(entry for part in parts for entry in part.logprobs or ()) if has_logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
    )
