"""The sizes and constants of a model, read from its file and never guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


class ModelError(ValueError):
    """A model that cannot be run as it is: something is missing, inconsistent or not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Raises ModelError, naming the field, for sizes that do not fit each other."""

    architecture: str
    """The family, as the registry names it."""
    name: str
    """What the model calls itself, for people."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    """Leading elements of a head that are rotated."""
    rope_base: float
    rope_interleaved: bool = True
    """Pairs are neighbours (2i, 2i + 1), else the halves of the rotated part."""
    rope_linear_factor: float = 1.0
    """Positions are divided by this."""
    norm_eps: float
    vocab_size: int
    context_len: int
    """Most positions that the model was made for."""

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "rotary_dim"):
            if getattr(self, field) < 1:
                raise ModelError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_heads is {self.num_heads}, not a multiple of num_kv_heads, {self.num_kv_heads}"
            )
        if self.head_dim % 8:
            raise ModelError(f"head_dim is {self.head_dim}; it must be divisible by 8")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ModelError(
                f"rotary_dim is {self.rotary_dim}; it must be even and at most head_dim, {self.head_dim}"
            )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> ModelConfig:
        """Read the keys that every architecture has. Raises ModelError, naming the key, for what is amiss.

        A key that the format gives a default for may be missing, and has that default.
        """
        architecture = read_architecture(metadata)
        keys = _Keys(metadata, architecture)
        keys.refuse_unsupported()
        hidden_size = keys.count("embedding_length")
        num_heads = keys.count("attention.head_count")
        head_dim = _head_dim(keys, hidden_size, num_heads)
        return cls(
            architecture=architecture,
            name=str(metadata.get("general.name", architecture)),
            num_layers=keys.count("block_count"),
            hidden_size=hidden_size,
            intermediate_size=keys.count("feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=keys.count("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rotary_dim=keys.count("rope.dimension_count", head_dim),
            rope_base=keys.number("rope.freq_base", 10_000.0),
            rope_linear_factor=_rope_linear_factor(keys),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            vocab_size=_vocab_size(keys, metadata),
            context_len=keys.count("context_length"),
        )


def read_architecture(metadata: Mapping[str, object]) -> str:
    """The name of the model's family. Raises ModelError where the file does not say."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelError("the file has no metadata 'general.architecture'")
    return architecture


def _head_dim(keys: _Keys, hidden_size: int, num_heads: int) -> int:
    if "attention.key_length" in keys:
        head_dim = keys.count("attention.key_length")
    elif hidden_size % num_heads:
        raise ModelError(
            f"metadata {keys.full('attention.key_length')!r} is missing, and its default, embedding_length / "
            f"head_count = {hidden_size} / {num_heads}, is no whole number"
        )
    else:
        head_dim = hidden_size // num_heads
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise ModelError(
            f"metadata {keys.full('attention.value_length')!r} must equal the key length, {head_dim}"
        )
    return head_dim


def _vocab_size(keys: _Keys, metadata: Mapping[str, object]) -> int:
    """The file's number, or one for each token of its tokenizer. There may be more rows than tokens."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) else None
    vocab_size = keys.count("vocab_size", num_tokens)
    if num_tokens is not None and num_tokens > vocab_size:
        raise ModelError(
            f"metadata {keys.full('vocab_size')!r} is {vocab_size}, fewer than the {num_tokens} tokens of "
            "'tokenizer.ggml.tokens'"
        )
    return vocab_size


def _rope_linear_factor(keys: _Keys) -> float:
    """A factor without a type is linear; old files give it another name."""
    old = "rope.scale_linear" in keys and "rope.scaling.factor" not in keys
    key = "rope.scale_linear" if old else "rope.scaling.factor"
    kind = keys.text("rope.scaling.type", "linear" if key in keys else "none")
    if kind == "none":
        return 1.0
    if kind == "linear":
        return keys.number(key)
    raise ModelError(f"rope scaling {kind!r} ({keys.full('rope.scaling.type')}) is not supported; linear is")


class _Keys:
    """Metadata under the architecture's prefix, checked for type and range."""

    def __init__(self, metadata: Mapping[str, object], architecture: str) -> None:
        self._metadata = metadata
        self._architecture = architecture

    def __contains__(self, key: str) -> bool:
        return self.full(key) in self._metadata

    def full(self, key: str) -> str:
        return f"{self._architecture}.{key}"

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"metadata {self.full(key)!r} must be one whole number, got {_describe(value)}")
        if value < 1:
            raise ModelError(f"metadata {self.full(key)!r} must be at least 1, got {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise ModelError(f"metadata {self.full(key)!r} must be a number above 0, got {_describe(value)}")

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ModelError(f"metadata {self.full(key)!r} must be a string, got {_describe(value)}")
        return value

    def refuse_unsupported(self) -> None:
        """Features that change what is computed, and that no family here has."""
        for key in ("expert_count", "attention.sliding_window"):
            if self._metadata.get(self.full(key), 0) != 0:
                raise ModelError(f"metadata {self.full(key)!r}: models with this are not supported")

    def _get(self, key: str, default: object) -> object:
        value = self._metadata.get(self.full(key), default)
        if value is None:
            raise ModelError(f"metadata {self.full(key)!r} is missing")
        return value


def _describe(value: object) -> str:
    return repr(value) if isinstance(value, int | float | str) else f"an array ({type(value).__name__})"
