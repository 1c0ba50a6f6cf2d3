"""What a client may ask of the sampler, named as in the OpenAI API and vLLM's offline API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_LOGPROBS = 20
MAX_CHOICES = 128


class ParameterError(ValueError):
    """A client's mistake. `param` names the field, as the OpenAI error object does."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen. Frozen; every field is validated on construction.

    Raises ParameterError, naming the field, for a value outside its range.
    """

    n: int = 1
    """Sequences to return, 1 to 128. They share the prompt's blocks."""
    temperature: float = 1.0
    """0 is greedy: the most likely token, the lowest id among equals."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches top_p."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or the output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of each token in the output, once for each occurrence."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    seed: int | None = None
    """Makes a sampled answer repeatable in any batch; None takes one from the engine's seed and request."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer. A single str is accepted."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that ended the answer."""
    min_tokens: int = 0
    """No stop (EOS, stop token, stop string) before this many tokens."""
    max_tokens: int | None = 16
    """Most tokens to generate; None means up to the model's length."""
    ignore_eos: bool = False
    """Go on after the end-of-sequence token."""
    logprobs: int | None = None
    """Report the log-probability of each token and of this many most likely ones (0 to 20)."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        stop: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _as_tuple("stop", stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        if not isinstance(self.logit_bias or {}, Mapping):
            raise ParameterError("logit_bias must map token ids to numbers", "logit_bias")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias or {}))
        self._validate()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def _validate(self) -> None:
        _require_int("n", self.n, 1, MAX_CHOICES)
        _require_float("temperature", self.temperature, 0.0, 100.0)
        _require_int("top_k", self.top_k, -1)
        _require_float("top_p", self.top_p, 0.0, 1.0, low_excluded=True)
        _require_float("min_p", self.min_p, 0.0, 1.0)
        _require_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_excluded=True)
        _require_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise ParameterError(
                    f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}", "min_tokens"
                )
        if self.seed is not None:
            _require_int("seed", self.seed, -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            _require_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"{name} must be true or false", name)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ParameterError("stop must hold non-empty strings", "stop")
        for token_id in self.stop_token_ids:
            _require_int("stop_token_ids", token_id, 0)
        for token_id, bias in self.logit_bias.items():
            _require_int("logit_bias", token_id, 0)
            _require_float("logit_bias", bias, -100.0, 100.0)


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ParameterError(f"{name} must be a list", name)
    return tuple(value)


def _require_int(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(f"{name} must be an integer", name)
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ParameterError(f"{name} must be {limits}", name)


def _require_float(name: str, value: object, low: float, high: float, *, low_excluded: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ParameterError(f"{name} must be a number", name)
    if value < low or value > high or (low_excluded and value == low):
        lower = f"more than {low:g}" if low_excluded else f"at least {low:g}"
        raise ParameterError(f"{name} must be {lower} and at most {high:g}", name)
