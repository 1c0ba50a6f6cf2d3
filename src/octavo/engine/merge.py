"""Several pieces of an answer as one."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.outputs import ChoiceDelta, RequestDelta


def merge(deltas: list[RequestDelta]) -> RequestDelta:
    """Several deltas of one request as one: texts and tokens joined choice by choice."""
    if len(deltas) == 1:
        return deltas[0]
    parts: dict[int, list[ChoiceDelta]] = {}
    for delta in deltas:
        for choice in delta.choices:
            parts.setdefault(choice.index, []).append(choice)
    last = deltas[-1]
    choices = tuple(join(index, parts[index]) for index in sorted(parts))
    return RequestDelta(last.request_id, choices, last.num_cached_tokens, last.finished)


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
