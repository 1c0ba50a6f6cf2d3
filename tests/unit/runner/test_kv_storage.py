"""Sizing: what is asked for is given or refused with the numbers; what is not asked for fits."""

from __future__ import annotations

import pytest

from octavo.config import CacheConfig, ConfigError, SchedulerConfig
from octavo.runner.kv_storage import plan_layout, plan_max_model_len
from support.toy import toy_program

# The toy: 2 layers, 2 kv heads, head_dim 16, float16.
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 2


def layout(
    free_bytes: int = 1 << 30, context_len: int = 512, max_model_len: int | None = None, **cache: object
):  # type: ignore[no-untyped-def]
    scheduler = SchedulerConfig(max_num_seqs=4, max_model_len=max_model_len)
    return plan_layout(toy_program(), context_len, CacheConfig(**cache), scheduler, free_bytes=free_bytes)


def test_bytes_of_a_token_and_a_block() -> None:
    planned = layout(num_blocks=3, block_size=8)
    assert planned.bytes_per_token == BYTES_PER_TOKEN
    assert planned.bytes_per_block == 8 * BYTES_PER_TOKEN
    assert planned.num_bytes == 24 * BYTES_PER_TOKEN


def test_kv_cache_memory_is_rounded_down_to_blocks() -> None:
    assert layout(kv_cache_memory=5 * 16 * BYTES_PER_TOKEN + 1).num_blocks == 5


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="one block of 16 tokens") as refused:
        layout(kv_cache_memory=16 * BYTES_PER_TOKEN - 1)
    assert refused.value.field == "kv_cache_memory"


def test_default_is_no_more_than_full_contexts_for_everyone() -> None:
    assert layout().num_blocks == 4 * 512 // 16


def test_default_takes_a_share_of_little_memory_but_holds_one_context() -> None:
    one_context = 512 * BYTES_PER_TOKEN
    assert layout(free_bytes=8 * one_context).num_blocks == 2 * 512 // 16
    assert layout(free_bytes=2 * one_context).num_blocks == 512 // 16


@pytest.mark.parametrize(
    ("cache", "field"),
    [({"num_blocks": 100}, "num_blocks"), ({"kv_cache_memory": 1 << 30}, "kv_cache_memory")],
)
def test_more_than_there_is_is_refused_with_the_numbers(cache: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError, match="at most 3 blocks fit") as refused:
        layout(free_bytes=3 * 16 * BYTES_PER_TOKEN, **cache)
    assert refused.value.field == field


def test_max_model_len_defaults_to_what_model_and_pool_allow() -> None:
    assert plan_max_model_len(layout(num_blocks=4), 512, None) == 64
    assert plan_max_model_len(layout(num_blocks=400), 512, None) == 512
    assert plan_max_model_len(layout(num_blocks=4), 512, 64) == 64
    with pytest.raises(ConfigError, match="largest that works is 64"):
        plan_max_model_len(layout(num_blocks=4), 512, 65)
