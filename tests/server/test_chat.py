"""POST /v1/chat/completions: messages, shapes, roles in streams, logprobs."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from server.fake_engine import END, FakeEngine, Step, say, strict_json
from server.live_server import events_of

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json={"messages": USER, **body})
    assert response.status_code == 200, response.text
    return dict(strict_json(response.text))


def stream(client: TestClient, **body: Any) -> list[Any]:
    response = client.post(PATH, json={"messages": USER, "stream": True, **body})
    assert response.status_code == 200, response.text
    return events_of(response.text)


def test_shape(client: TestClient, engine: FakeEngine) -> None:
    engine.num_cached_tokens = 2
    body = ask(client)
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    body.pop("system_fingerprint")
    assert body == {
        "object": "chat.completion",
        "model": "toy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_stream(client: TestClient) -> None:
    chunks = stream(client, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello"
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5


def test_each_choice_has_its_role_text_and_end(client: TestClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, params: [
        step for index in range(params.n) for step in say(f"answer {index}", index=index)
    ]
    expected = [f"answer {index}" for index in range(3)]
    assert [choice["message"]["content"] for choice in ask(client, n=3)["choices"]] == expected
    choices = [chunk["choices"][0] for chunk in stream(client, n=3)]
    for index, text in enumerate(expected):
        mine = [choice for choice in choices if choice["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in mine) == text
        assert [choice["finish_reason"] for choice in mine].count("stop") == 1


def test_messages_as_templates_read_them(client: TestClient, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "ok", "refusal": None, "tool_calls": []},
        {"role": "tool", "content": "", "tool_call_id": "1"},
    ]
    ask(
        client,
        messages=messages,
        chat_template_kwargs={"enable_thinking": False},
        add_generation_prompt=False,
    )
    assert engine.chats == [
        (
            [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "one\ntwo", "name": "Ann"},
                {"role": "assistant", "content": ""},
                {"role": "assistant", "content": "ok"},
                {"role": "tool", "content": ""},
            ],
            {"enable_thinking": False, "add_generation_prompt": False},
        )
    ]


def test_max_tokens_by_either_name(client: TestClient, engine: FakeEngine) -> None:
    ask(client, max_tokens=5)
    ask(client, max_completion_tokens=6)
    ask(client, max_tokens=5, max_completion_tokens=6)
    assert [params.max_tokens for _, params, _ in engine.submitted] == [5, 6, 6]


def test_logprobs(client: TestClient, engine: FakeEngine) -> None:
    """true alone is the sampled token without alternatives; false and null are none."""
    engine.script = lambda prompt, params: say("é", top=params.logprobs)
    for off in ({}, {"logprobs": None}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}):
        assert ask(client, **off)["choices"][0]["logprobs"] is None
    for top in (None, 0):
        entries = ask(client, logprobs=True, top_logprobs=top)["choices"][0]["logprobs"]["content"]
        assert entries == [
            {"token": "bytes:\\xc3", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": []},
            {"token": "bytes:\\xa9", "logprob": -0.5, "bytes": [0xA9], "top_logprobs": []},
        ]
    whole = ask(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in whole[0]["top_logprobs"]] == [[0xC3], [1]]
    chunks = stream(client, logprobs=True, top_logprobs=2)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == whole


def test_empty_answer(client: TestClient, engine: FakeEngine) -> None:
    engine.script = lambda prompt, params: [Step("", (END,), finish_reason="stop")]
    assert ask(client)["choices"][0]["message"]["content"] == ""
    role, end = (chunk["choices"][0] for chunk in stream(client))
    assert (role["finish_reason"], end["finish_reason"]) == (None, "stop")
    assert end["delta"] == {}
