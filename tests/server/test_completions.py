"""POST /v1/completions: shapes, prompts, choices, logprobs, usage; streamed and not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from starlette.testclient import TestClient

from octavo.batch import TokenLogprob
from server.fake_engine import END, FakeEngine, Step, say, strict_json
from server.live_server import events_of

PATH = "/v1/completions"
EMOJI = "né 👩‍👩‍👧 щ ざ 🇪🇺!"


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json={"prompt": "hi", **body})
    assert response.status_code == 200, response.text
    return dict(strict_json(response.text))


def stream(client: TestClient, **body: Any) -> list[Any]:
    response = client.post(PATH, json={"prompt": "hi", "stream": True, **body})
    assert response.status_code == 200, response.text
    return events_of(response.text)


def joined(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index
    )


def test_shape(client: TestClient, engine: FakeEngine) -> None:
    engine.num_cached_tokens = 1
    body = ask(client, model="toy")
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "object": "text_completion",
        "model": "toy",
        "choices": [
            {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 5,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_stream_has_the_same_text_and_one_finish(client: TestClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, params: say(EMOJI, finish_reason="length")
    chunks = stream(client)
    assert joined(chunks) == EMOJI == ask(client)["choices"][0]["text"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert all("usage" not in chunk for chunk in chunks)
    assert all(chunk["choices"][0]["text"] for chunk in chunks)


def test_parameters_reach_the_engine(client: TestClient, engine: FakeEngine) -> None:
    fields = {
        "n": 2,
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 0.5,
        "seed": 2**63,
        "min_tokens": 3,
        "max_tokens": 9,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs": 0,
    }
    ask(client, **fields, stop=["a", "b"], stop_token_ids=[3], logit_bias={"65": -100}, cache_salt="tenant")
    _, params, salt = engine.submitted[0]
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a", "b"), (3,), {65: -100.0})
    assert salt == "tenant"
    ask(client, stop="x")
    assert engine.submitted[1][1].stop == ("x",)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
    ],
)
def test_prompt_shapes(
    client: TestClient, engine: FakeEngine, prompt: Any, expected: list[list[int]]
) -> None:
    body = ask(client, prompt=prompt)
    assert [prompt for prompt, _, _ in engine.submitted] == expected
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert len(body["choices"]) == len(expected)


def three_prompts_two_choices(prompt: list[int], params: Any) -> list[Step]:
    """Choice 1 of each prompt is longer, and both advance by turns."""
    name = bytes(prompt).decode()
    short, long = say(f"{name}0", index=0), say(f"{name}1 and more", index=1)
    turns = [step for pair in zip(short, long, strict=False) for step in pair]
    return turns + long[len(short) :]


@pytest.mark.parametrize("echo", [False, True])
def test_several_prompts_and_choices(client: TestClient, engine: FakeEngine, echo: bool) -> None:
    """index = prompt * n + choice; every choice ends once; a prompt counts once."""
    engine.script = three_prompts_two_choices
    engine.num_cached_tokens = 1
    expected = [
        f"{name if echo else ''}{name}{tail}" for name in ("xx", "yy", "zz") for tail in ("0", "1 and more")
    ]
    fields = {"prompt": ["xx", "yy", "zz"], "n": 2, "echo": echo}
    body = ask(client, **fields)
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["text"] for choice in body["choices"]] == expected
    chunks = stream(client, **fields, stream_options={"include_usage": True})
    assert [joined(chunks, index) for index in range(6)] == expected
    finished = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(finished) == list(range(6))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == body["usage"]
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 3 * (3 + 12)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


def test_echo_of_token_ids_shows_special_tokens(client: TestClient) -> None:
    assert ask(client, prompt=[65, END], echo=True)["choices"][0]["text"] == "A<end>Hello"


def test_usage_in_streams_only_when_asked(client: TestClient) -> None:
    for options in (None, {}, {"include_usage": False}, {"continuous_usage_stats": True}):
        assert all("usage" not in chunk for chunk in stream(client, stream_options=options))
    chunks = stream(client, stream_options={"include_usage": True})
    assert [chunk for chunk in chunks if "usage" in chunk] == chunks[-1:]
    continuous = stream(client, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in continuous] == [1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize("top", [0, 1, 5])
@pytest.mark.parametrize("streams", [False, True])
def test_logprobs_and_offsets(client: TestClient, engine: FakeEngine, top: int, streams: bool) -> None:
    engine.script = lambda prompt, params: say(EMOJI, top=params.logprobs)
    if streams:
        chunks = stream(client, logprobs=top)
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        logprobs = {name: [entry for part in parts for entry in part[name]] for name in parts[0]}
    else:
        logprobs = ask(client, logprobs=top)["choices"][0]["logprobs"]
    num_tokens = len(EMOJI.encode())
    assert [len(logprobs[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [
        num_tokens
    ] * 4
    offsets = [*logprobs["text_offset"], len(EMOJI)]
    slices = [EMOJI[start:end] for start, end in itertools.pairwise(offsets)]
    assert "".join(slices) == EMOJI
    for token, text, likeliest in zip(logprobs["tokens"], slices, logprobs["top_logprobs"], strict=True):
        assert token == text if token.isascii() and "bytes:" not in token else token.startswith("bytes:")
        assert likeliest[token] == -0.5
        assert len(likeliest) == max(1, top)
    assert logprobs["tokens"][1:3] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_offsets_stop_at_the_end_of_a_cut_text(client: TestClient, engine: FakeEngine) -> None:
    """A stop string of three tokens was held back and cut: its tokens stand at the end of the text."""
    steps = say("abSTOP", top=0)
    steps = [*steps[:2], *(Step("", s.token_ids, logprobs=s.logprobs) for s in steps[2:5])]
    end = Step("", (80,), finish_reason="stop", stop_reason="STOP", logprobs=say("P", top=0)[0].logprobs)
    engine.script = lambda prompt, params: [*steps, end]
    choice = ask(client, logprobs=0)["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("ab", "STOP")
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2, 2, 2]
    chunks = stream(client, logprobs=0)
    assert chunks[-1]["choices"][0]["logprobs"]["text_offset"] == [2, 2, 2, 2]


def test_infinite_logprobs_are_json_numbers(client: TestClient, engine: FakeEngine) -> None:
    entries = ((TokenLogprob(65, float("-inf"), 1), TokenLogprob(66, float("nan"), 2)),)
    engine.script = lambda prompt, params: [Step("A", (65,), finish_reason="stop", logprobs=entries)]
    logprobs = ask(client, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{"A": -9999.0, "B": -9999.0}]


def test_text_without_tokens_yet_waits(client: TestClient, engine: FakeEngine) -> None:
    """No chunk without text: tokens of half a character travel with the other half."""
    engine.script = lambda prompt, params: say("é" * 3, top=0)
    chunks = stream(client, logprobs=0)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["é"] * 3
    assert [len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in chunks] == [2, 2, 2]


def test_error_in_a_stream(client: TestClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, params: [*say("one")[:2], Step("", finish_reason="error", error="secret")]
    *chunks, last = stream(client)
    assert joined(chunks) == "on"
    assert last["error"]["type"] == "server_error"
    assert "secret" not in str(last)


def test_shutdown_in_a_stream(client: TestClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, params: [*say("one")[:2], Step("", finish_reason="abort")]
    assert stream(client)[-1]["error"]["type"] == "unavailable_error"
    assert client.post(PATH, json={"prompt": "hi"}).status_code == 503
