"""How much K and V memory: bytes a block, how many blocks, how long a request may grow."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from octavo.config import CacheConfig, ConfigError, SchedulerConfig
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.ops import Program

DEFAULT_MEMORY_SHARE = 0.25
"""Of the memory that is free at start, when neither num_blocks nor kv_cache_memory is given."""


def plan_layout(
    program: Program, context_len: int, cache: CacheConfig, scheduler: SchedulerConfig, *, free_bytes: int
) -> KVLayout:
    """Size the pool.

    context_len: most positions that the model was made for. free_bytes: memory that the pool may count on.
    Raises ConfigError, with bytes needed and available and the largest length that works, when
    max_model_len cannot be held.
    """
    one_block = KVLayout(
        num_layers=program.num_layers,
        num_kv_heads=program.num_kv_heads,
        head_dim=program.head_dim,
        block_size=cache.block_size,
        num_blocks=1,
        dtype=cache.kv_cache_dtype,
    )
    num_blocks = cache.num_blocks
    if num_blocks is None:
        budget = cache.kv_cache_memory
        if budget is None:
            budget = _default_budget(one_block, context_len, scheduler, free_bytes)
        num_blocks = budget // one_block.bytes_per_block
        if num_blocks < 1:
            raise ConfigError(
                f"kv_cache_memory is {budget} bytes, but one block of {cache.block_size} tokens takes "
                f"{one_block.bytes_per_block}",
                "kv_cache_memory",
            )
    if num_blocks * one_block.bytes_per_block > free_bytes:
        field = "num_blocks" if cache.num_blocks is not None else "kv_cache_memory"
        raise ConfigError(
            f"the KV pool needs {num_blocks * one_block.bytes_per_block} bytes ({num_blocks} blocks of "
            f"{one_block.bytes_per_block}), but {free_bytes} are available; "
            f"at most {free_bytes // one_block.bytes_per_block} blocks fit",
            field,
        )
    return replace(one_block, num_blocks=num_blocks)


def plan_max_model_len(layout: KVLayout, context_len: int, requested: int | None) -> int:
    """Most tokens of prompt and answer together: as asked for, else what model and pool allow.

    Raises ConfigError when the request is longer than the model's context or than the pool.
    """
    pool_tokens = layout.num_blocks * layout.block_size
    if requested is None:
        return min(context_len, pool_tokens)
    if requested > context_len:
        raise ConfigError(
            f"max_model_len is {requested}, but the model was made for at most {context_len} tokens",
            "max_model_len",
        )
    if requested > pool_tokens:
        needed = -(-requested // layout.block_size) * layout.bytes_per_block
        raise ConfigError(
            f"max_model_len {requested} needs {needed} bytes of KV cache, but the pool has "
            f"{layout.num_bytes} ({layout.num_blocks} blocks of {layout.block_size} tokens); "
            f"the largest that works is {pool_tokens}",
            "max_model_len",
        )
    return requested


def available_memory_bytes() -> int:
    """Memory that this process can still take: MemAvailable, or less inside a control group."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pass
    limit, used = _read_int("/sys/fs/cgroup/memory.max"), _read_int("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _default_budget(
    one_block: KVLayout, context_len: int, scheduler: SchedulerConfig, free_bytes: int
) -> int:
    """A share of free memory, but no more than max_num_seqs full contexts, and at least one if that fits."""
    model_len = scheduler.max_model_len or context_len
    one_user = -(-model_len // one_block.block_size) * one_block.bytes_per_block
    budget = min(int(free_bytes * DEFAULT_MEMORY_SHARE), one_user * scheduler.max_num_seqs)
    return min(max(budget, one_user), free_bytes)
