"""From the fields of a request to SamplingParams, and the limits that the API sets beside the engine's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.params import MAX_LOGPROBS, ParameterError, SamplingParams
from octavo.server.engine_protocol import Engine
from octavo.server.errors import context_length_exceeded, from_parameter, invalid
from octavo.server.protocol import GenerationRequest

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 300

_PASSED_ON = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
)
_TOKEN_ID = re.compile(r"[0-9]{1,9}")


def sampling_params(
    request: GenerationRequest,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    vocab_size: int,
    names: Mapping[str, str],
) -> SamplingParams:
    """The validated parameters. `names`: as in from_parameter. Raises ApiError naming the field."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _PASSED_ON}
    fields = {name: value for name, value in fields.items() if value is not None}
    if request.n is not None and request.n > MAX_CHOICES:
        raise invalid(f"n must be at most {MAX_CHOICES}, got {request.n}", "n")
    try:
        return SamplingParams(
            **fields,
            max_tokens=max_tokens,
            logprobs=logprobs,
            stop=_stop(request),
            stop_token_ids=_stop_token_ids(request),
            logit_bias=_logit_bias(request, vocab_size),
        )
    except ParameterError as error:
        raise from_parameter(error, names) from None


def check_logprobs(number: int, param: str) -> None:
    if not 0 <= number <= MAX_LOGPROBS:
        raise invalid(f"{param} must be between 0 and {MAX_LOGPROBS}, got {number}", param)


def fit_to_context(
    engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int | None, *, prompt: str, asked_by: str
) -> None:
    """Refuse what cannot fit into the model's length. `prompt` and `asked_by` name the client's fields.

    A prompt must leave room for one token. A max_tokens that the client gave must fit whole.
    """
    limit = engine.max_model_len
    longest = max(map(len, prompts))
    if longest >= limit:
        raise context_length_exceeded(
            f"the model's context length is {limit} tokens; the {prompt} has {longest},"
            " which leaves no room for an answer",
            prompt,
        )
    if max_tokens is not None and longest + max_tokens > limit:
        raise context_length_exceeded(
            f"the model's context length is {limit} tokens; the {prompt} has {longest} and {asked_by} is"
            f" {max_tokens}, together {longest + max_tokens}",
            asked_by,
        )


def _stop(request: GenerationRequest) -> tuple[str, ...]:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOP_STRINGS:
        raise invalid(f"stop has {len(stops)} strings; at most {MAX_STOP_STRINGS} are taken", "stop")
    for number, text in enumerate(stops):
        if len(text) > MAX_STOP_CHARACTERS:
            param = f"stop[{number}]"
            raise invalid(f"{param} is longer than {MAX_STOP_CHARACTERS} characters", param)
    return tuple(stops)


def _stop_token_ids(request: GenerationRequest) -> tuple[int, ...]:
    ids = request.stop_token_ids or []
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise invalid(f"at most {MAX_STOP_TOKEN_IDS} stop_token_ids are taken", "stop_token_ids")
    return tuple(ids)


def _logit_bias(request: GenerationRequest, vocab_size: int) -> dict[int, float]:
    biases = request.logit_bias or {}
    if len(biases) > MAX_LOGIT_BIAS:
        raise invalid(
            f"logit_bias has {len(biases)} entries; at most {MAX_LOGIT_BIAS} are taken", "logit_bias"
        )
    for key in biases:
        if not _TOKEN_ID.fullmatch(key) or int(key) >= vocab_size:
            raise invalid(f"a key of logit_bias is not a token id below {vocab_size}", "logit_bias")
    return {int(key): value for key, value in biases.items()}
