"""The installed command, the real model, the official client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

pytestmark = pytest.mark.model


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(model: Path, *flags: str) -> tuple[subprocess.Popen[str], str]:
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "octavo",
            "serve",
            str(model),
            "--port",
            str(port),
            "--served-model-name",
            "smol",
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return process, url
        except httpx.TransportError:
            time.sleep(0.05)
        if process.poll() is not None:
            break
    process.kill()
    raise AssertionError(f"the server did not start:\n{process.communicate()[0]}")


@pytest.fixture(scope="module")
def url(smollm2_path: Path) -> Iterator[str]:
    process, url = start(smollm2_path, "--num-blocks", "512")
    yield url
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def metric(url: str, name: str) -> float:
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith(name + "{"):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name}")


def test_chat_gives_a_sensible_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        temperature=0,
        max_tokens=40,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_completion_equals_its_stream(client: openai.OpenAI) -> None:
    arguments = {"model": "smol", "prompt": "The history of Rome begins", "temperature": 0, "max_tokens": 24}
    whole = client.completions.create(**arguments)  # type: ignore[call-overload]
    pieces, usage = [], None
    for chunk in client.completions.create(**arguments, stream=True, stream_options={"include_usage": True}):  # type: ignore[call-overload]
        usage = chunk.usage or usage
        pieces.extend(choice.text for choice in chunk.choices)
    assert "".join(pieces) == whole.choices[0].text
    assert "founding" in whole.choices[0].text
    assert usage is not None
    assert usage.completion_tokens == 24
    assert usage.prompt_tokens_details.cached_tokens == 4


def test_many_users_share_and_stream_at_once(client: openai.OpenAI) -> None:
    system = "You are a terse assistant. " * 12
    answers: dict[int, str] = {}

    def ask(i: int) -> None:
        stream = client.chat.completions.create(
            model="smol",
            messages=[
                {"role": "system", "content": system},
                {"role": "user", "content": f"Say the number {i}."},
            ],
            temperature=0,
            max_tokens=12,
            stream=True,
        )
        answers[i] = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(answers.values())
    together = dict(answers)
    ask(3)
    assert answers[3] == together[3], "the answer does not depend on who else is served"


def test_n_logprobs_and_stop(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smol",
        prompt="One, two, three,",
        n=3,
        seed=3,
        temperature=0.8,
        max_tokens=8,
        logprobs=2,
        logit_bias={"0": -100, "2": -100},  # no choice ends early
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert len(choice.logprobs.tokens or []) == 8
        assert "".join(choice.logprobs.tokens or []) == choice.text
    stopped = client.completions.create(
        model="smol", prompt="One, two, three,", temperature=0, max_tokens=30, stop=[" seven"]
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text.rstrip(",").endswith("six")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": [999_999]}, "prompt"),
        ({"prompt": "word " * 9000}, "prompt"),
        ({"prompt": "x", "stop": [""]}, "stop"),
        ({"prompt": "x", "logit_bias": {"70000": 1}}, "logit_bias"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_are_named_before_anything_streams(
    url: str, body: dict[str, object], param: str, stream: bool
) -> None:
    answer = httpx.post(f"{url}/v1/completions", json={"model": "smol", "stream": stream, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)
    assert "Traceback" not in answer.text


def test_a_client_that_leaves_frees_its_blocks(url: str) -> None:
    body = {
        "model": "smol",
        "prompt": "Once upon a time",
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
    }
    for _ in range(10):
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as stream:
            next(stream.iter_lines())
    deadline = time.monotonic() + 10
    while metric(url, "vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert metric(url, "vllm:num_requests_running") == 0
    assert metric(url, "vllm:kv_cache_usage_perc") == 0


def test_tokenize_round_trip_and_models(url: str) -> None:
    text = "Héllo, wörld! <|im_end|> 你好 🎉"
    tokens = httpx.post(f"{url}/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert httpx.post(f"{url}/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"] == text
    models = httpx.get(f"{url}/v1/models").json()
    assert models["data"][0]["id"] == "smol"
    assert models["data"][0]["max_model_len"] > 1000
    assert "version" in httpx.get(f"{url}/version").json()


def test_sigterm_drains_what_runs_and_exits_0(smollm2_path: Path) -> None:
    process, url = start(smollm2_path, "--num-blocks", "256")
    body = {
        "model": "smol",
        "prompt": "Tell me a story.",
        "max_tokens": 60,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    finish = [json.loads(d)["choices"][0]["finish_reason"] for d in data[:-1] if json.loads(d)["choices"]]
    assert finish[-1] == "length"
    assert process.wait(timeout=20) == 0
