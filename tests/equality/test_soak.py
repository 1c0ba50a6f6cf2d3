"""Two thousand requests through a pool for a quarter of them: nothing lost or leaked, no token changed."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

from octavo.params import SamplingParams
from support.harness import GREEDY, SEEDED, Cold, Harness

NUM_REQUESTS = 2_000
BLOCK_SIZE = 4
NUM_BLOCKS = 64
"""16 sequences run at once and need up to 15 blocks each: a pool for about a quarter of them."""


def catalogue(rng: random.Random) -> list[tuple[list[int], SamplingParams]]:
    """Prompts with shared stems; repeated over the soak, so that solo runs stay few."""
    stems = [rng.choices(range(512), k=24) for _ in range(4)]
    entries = []
    for _ in range(150):
        stem = rng.choice(stems)
        tokens = stem[: rng.randint(0, 24)] + rng.choices(range(512), k=rng.randint(1, 16))
        params = dataclasses.replace(
            rng.choice([GREEDY, SEEDED, dataclasses.replace(GREEDY, logprobs=None)]),
            max_tokens=rng.randint(1, 20),
            n=rng.choice([1, 1, 1, 2, 3]),
            ignore_eos=rng.random() < 0.5,
        )
        entries.append((tokens, params))
    return entries


def test_soak(toy_path: Path) -> None:
    rng = random.Random(7)
    entries = catalogue(rng)
    harness = Harness(
        toy_path,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=16,
        max_num_batched_tokens=48,
        patience=math.inf,
    )
    asked: dict[str, int] = {}
    aborted: set[str] = set()

    def arrive_and_leave(running: Harness) -> None:
        while len(asked) < NUM_REQUESTS and running.stats.num_waiting < 8:
            which = rng.randrange(len(entries))
            request_id = str(len(asked))
            asked[request_id] = which
            running.add(request_id, *entries[which])
        if rng.random() < 0.06:
            victim = rng.choice(running.engine.unfinished_ids)
            aborted.add(victim)
            running.abort(victim)
        stats = running.stats
        assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_held_blocks == NUM_BLOCKS

    arrive_and_leave(harness)
    while harness.engine.has_unfinished:
        harness.run(before_step=arrive_and_leave)
    assert len(asked) == NUM_REQUESTS
    harness.assert_drained()

    cold = Cold(toy_path)
    for request_id, which in asked.items():
        expected = cold.answers(*entries[which])
        for got, want in zip(harness.answers[request_id], expected, strict=True):
            if request_id in aborted:
                assert got.token_ids == want.token_ids[: len(got.token_ids)]
                assert got.logprobs == want.logprobs[: len(got.logprobs)]
                assert got.finish_reason in ("abort", want.finish_reason)
            else:
                assert got == want
    stats = harness.stats
    assert len(aborted) > 50
    assert stats.num_preemptions > 0
    assert stats.num_evictions > 0
    assert stats.num_copied_blocks > 0
    assert stats.num_prefix_hits > 0
