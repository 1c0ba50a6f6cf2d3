"""The whole way, sockets to kernels and back, on a toy model."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.config import EngineConfig
from octavo.engine.async_llm import AsyncLLM
from server.live_server import events_of, live_server, wait_until

NUM_BLOCKS, BLOCK_SIZE = 48, 4


@pytest.fixture
def engine(toy_path: Path) -> Iterator[AsyncLLM]:
    config = EngineConfig.from_options(
        str(toy_path),
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_threads=1,
        max_num_seqs=8,
        debug_checks=True,
    )
    engine = AsyncLLM(config)
    yield engine
    engine.close()


@pytest.fixture
def base(engine: AsyncLLM) -> Iterator[str]:
    with live_server(engine) as base:  # type: ignore[arg-type]
        yield base


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{seed}/{length}").choices(range(200), k=length)


def body(tokens: list[int], **changes: Any) -> dict[str, Any]:
    return {"prompt": tokens, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **changes}


def complete(base: str, tokens: list[int], **changes: Any) -> dict[str, Any]:
    answer = httpx.post(f"{base}/v1/completions", json=body(tokens, **changes), timeout=60)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def gauge(base: str, name: str, finished_reason: str = "") -> float:
    label = f'finished_reason="{finished_reason}".*' if finished_reason else ""
    line = rf"^{re.escape(name)}\{{.*{label}\}} (\S+)$"
    found = re.search(line, httpx.get(f"{base}/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_hundreds_of_clients_that_leave_change_nothing(engine: AsyncLLM, base: str) -> None:
    """InternLM/lmdeploy 1788: after 100 to 300 cancelled streams nothing was answered any more."""
    baseline = complete(base, prompt(20), logprobs=1)

    def leave_early(i: int) -> None:
        chunks = random.Random(i).randint(0, 5)
        request = body(prompt(1 + i % 30, seed=i), stream=True, max_tokens=100)
        with (
            httpx.Client() as client,
            client.stream("POST", f"{base}/v1/completions", json=request) as answer,
        ):
            # A slow reader gets several tokens in one chunk, so an answer may end before its reader leaves.
            for _ in islice(answer.iter_lines(), 2 * chunks):
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave_early, range(400)))
    wait_until(lambda: not engine._engine.has_unfinished)
    assert gauge(base, "vllm:num_requests_running") == 0
    assert gauge(base, "vllm:num_requests_waiting") == 0
    assert gauge(base, "vllm:kv_cache_usage_perc") == 0
    assert gauge(base, "vllm:request_success_total", finished_reason="abort") > 200
    assert complete(base, prompt(20), logprobs=1) == baseline
    nine_tenths = NUM_BLOCKS * BLOCK_SIZE * 9 // 10
    assert complete(base, prompt(nine_tenths), max_tokens=2)["finish_reason"] == "length"
    assert gauge(base, "vllm:num_preemptions_total") >= 0


def test_the_same_answer_alone_and_in_a_crowd(base: str) -> None:
    prompts = [prompt(3 + 5 * i, seed=i) for i in range(8)]
    alone = [complete(base, tokens, logprobs=3) for tokens in prompts]
    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(lambda tokens: complete(base, tokens, logprobs=3), prompts * 3))
    assert crowd == alone * 3


def test_what_can_never_fit_is_refused_and_followers_pass(base: str) -> None:
    """vllm-project/vllm 35541: a prompt longer than the pool stood at the head of the queue for ever."""
    for length in (NUM_BLOCKS * BLOCK_SIZE + 2, 400, 800):
        refused = httpx.post(f"{base}/v1/completions", json=body(prompt(length), stream=length == 400))
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        assert str(length) in error["message"]
    assert len(complete(base, prompt(20))["text"]) > 0


def test_stream_pieces_make_the_whole_text(base: str) -> None:
    whole = complete(base, prompt(11), n=3, temperature=1, seed=4, max_tokens=30)
    request = body(prompt(11), n=3, temperature=1, seed=4, max_tokens=30, stream=True)
    events = events_of(httpx.post(f"{base}/v1/completions", json=request, timeout=60).text)
    pieces = [choice for event in events for choice in event["choices"]]
    assert {choice["index"] for choice in pieces} == {0, 1, 2}
    assert "".join(choice["text"] for choice in pieces if choice["index"] == 0) == whole["text"]


def test_a_fault_of_one_request_is_its_own(engine: AsyncLLM, base: str) -> None:
    good = complete(base, prompt(9))
    runner = engine._engine.core.runner
    original = runner.run

    def poisoned(batch: Any) -> Any:
        if any(255 in part.token_ids for part in batch.sequences):
            raise RuntimeError("secret detail")
        return original(batch)

    runner.run = poisoned  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as pool:
        bad = pool.submit(httpx.post, f"{base}/v1/completions", json=body([1, 255, 2]), timeout=60)
        others = [pool.submit(complete, base, prompt(9)) for _ in range(3)]
        assert all(other.result() == good for other in others)
    assert bad.result().status_code == 500
    assert bad.result().json()["error"]["type"] == "server_error"
    assert "secret" not in bad.result().text
    assert httpx.get(f"{base}/health").status_code == 200


def test_a_dead_engine_says_so_at_once(engine: AsyncLLM, base: str) -> None:
    """vllm-project/vllm 2067: the engine loop had died and the web server went on as if nothing were."""

    def die() -> Any:
        raise MemoryError

    engine._engine.step = die  # type: ignore[method-assign]
    answer = httpx.post(f"{base}/v1/completions", json=body(prompt(5)), timeout=10)
    assert answer.status_code == 500
    assert httpx.get(f"{base}/health").status_code == 503
    assert json.loads(httpx.post(f"{base}/v1/completions", json=body(prompt(5)), timeout=10).text)["error"]
