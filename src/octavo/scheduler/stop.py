"""When a token ends its sequence: pure functions. Stop strings are text and belong to the engine."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.params import SamplingParams
from octavo.request import FinishReason


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a sequence ends. stop_token_id is set when one of params.stop_token_ids ended it."""

    reason: FinishReason
    stop_token_id: int | None = None


EOS = Stop(FinishReason.STOP)
LENGTH = Stop(FinishReason.LENGTH)


def stop_by_token(
    token_id: int, num_output: int, params: SamplingParams, eos_token_ids: frozenset[int]
) -> Stop | None:
    """Whether the newest token, the num_output-th of the answer, says that the answer ends."""
    if num_output < params.min_tokens:
        return None
    if token_id in eos_token_ids and not params.ignore_eos:
        return EOS
    if token_id in params.stop_token_ids:
        return Stop(FinishReason.STOP, token_id)
    return None


def stop_token_ids(params: SamplingParams, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """All tokens that may end an answer."""
    stops = frozenset(params.stop_token_ids)
    return stops if params.ignore_eos else stops | eos_token_ids


def end_len(num_prompt: int, max_tokens: int | None, longest: int) -> int:
    """Tokens at which a sequence ends with "length". A large or missing max_tokens means `longest`."""
    return longest if max_tokens is None else min(num_prompt + max_tokens, longest)
