"""Promise 1 on real weights: a smaller matrix than on the toy, with the quantised kernels that users run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from support.harness import GREEDY, SEEDED, Cold, Harness

pytestmark = pytest.mark.model
TEXT = (
    "Paged memory gives every process the illusion of a contiguous address space, while the system maps its "
    "pages to frames wherever they happen to be free. A key-value cache can be managed in the same way: "
    "requests see their tokens in order, and the blocks that hold them lie anywhere in the pool."
)
SHORT = dataclasses.replace(GREEDY, max_tokens=6)


@pytest.fixture(scope="module")
def cold(smollm2_path: Path) -> Cold:
    return Cold(smollm2_path)


@pytest.fixture(scope="module")
def ids(cold: Cold) -> list[int]:
    return cold._harness.assembly.tokenizer.encode(TEXT)


@pytest.mark.parametrize(("block_size", "num_threads"), [(4, 1), (16, 2), (64, 2)])
def test_batch_chunks_cache_threads_and_blocks(
    smollm2_path: Path, cold: Cold, ids: list[int], block_size: int, num_threads: int
) -> None:
    harness = Harness(
        smollm2_path,
        block_size=block_size,
        num_blocks=1024 // block_size,
        num_threads=num_threads,
        max_num_batched_tokens=24,
    )
    prompts = {f"{n}": ids[:n] for n in (1, 15, 16, 17, 49, len(ids))}
    for request_id, tokens in prompts.items():
        harness.add(request_id, tokens, SHORT)
        harness.add(f"{request_id}-seeded", tokens, dataclasses.replace(SEEDED, max_tokens=6))
    harness.run()
    assert harness.max_running > 6
    harness.add("warm", ids, SHORT)
    harness.run()
    assert harness.num_cached["warm"] == len(ids) - 1
    for request_id, tokens in prompts.items():
        assert harness.answers[request_id][0] == cold.answer(tokens, SHORT)
        assert harness.answers[f"{request_id}-seeded"][0] == cold.answer(
            tokens, dataclasses.replace(SEEDED, max_tokens=6)
        )
    assert harness.answers["warm"][0] == cold.answer(ids, SHORT)
    harness.assert_drained()


def test_preempted_and_forked(smollm2_path: Path, cold: Cold, ids: list[int]) -> None:
    params = dataclasses.replace(SEEDED, n=3, max_tokens=20)
    harness = Harness(smollm2_path, block_size=4, num_blocks=24, num_threads=2)
    harness.add("forked", ids[:30], params)
    harness.add("other", ids[5:35], dataclasses.replace(SEEDED, max_tokens=20))
    harness.run()
    assert harness.stats.num_preemptions > 0
    assert harness.stats.num_copied_blocks > 0
    assert harness.answers["forked"] == cold.answers(ids[:30], params)
    assert harness.answers["other"][0] == cold.answer(ids[5:35], dataclasses.replace(SEEDED, max_tokens=20))
    harness.assert_drained()
