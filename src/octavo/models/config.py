"""The sizes and constants of a model, read from its file and never guessed."""

from __future__ import annotations

from dataclasses import dataclass


class ModelError(ValueError):
    """A model that cannot be run as it is: something is missing, inconsistent or not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
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
    """Pairs are neighbours (2i, 2i + 1), else halves of the rotated part."""
    rope_linear_factor: float = 1.0
    """Positions are divided by this."""
    norm_eps: float
    vocab_size: int
    context_len: int
    """Most positions that the model was made for."""
