"""octavo: an LLM serving engine whose KV cache is paged virtual memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.params import ParameterError, SamplingParams
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.engine.llm import LLM
    from octavo.engine.outputs import CompletionOutput, Logprob, RequestOutput

__all__ = [
    "LLM",
    "CompletionOutput",
    "Logprob",
    "ParameterError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_LAZY = {
    "LLM": "octavo.engine.llm",
    "CompletionOutput": "octavo.engine.outputs",
    "Logprob": "octavo.engine.outputs",
    "RequestOutput": "octavo.engine.outputs",
}


def __getattr__(name: str) -> Any:
    """Import the engine when it is first named: `octavo --help` needs none of it."""
    if name not in _LAZY:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
