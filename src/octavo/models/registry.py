"""Which family builds which architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.kernels.ops import Program
from octavo.kernels.weights import Weight
from octavo.models.config import ModelConfig, ModelError
from octavo.models.llama import build_llama

Build = Callable[[ModelConfig, Mapping[str, Weight]], Program]

FAMILIES: dict[str, Build] = {
    "llama": build_llama,
}


def find_family(architecture: str) -> Build:
    """The function that builds models of an architecture. Raises ModelError for one that is not known."""
    if architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(f"architecture {architecture!r} is not supported; known: {known}")
    return FAMILIES[architecture]
