"""A client's mistake is a 4xx whose JSON names the field, also where a stream was asked for."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from octavo.engine.errors import EngineDeadError, EngineDrainingError
from octavo.params import ParameterError
from octavo.server import protocol
from octavo.server.app import create_app
from server.fake_engine import END, FakeEngine, Step, say

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert message
    for trace in ("Traceback", "Error:", "msgspec", "Exception", "$."):
        assert trace not in message
    return dict(body["error"])


# Values that no field of its kind takes, and the field that the error must name.
BOTH = [
    *(
        ({name: value}, name)
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        )
        for value in ("0.5", True, [], {}, 1e400)
    ),
    *(
        ({name: value}, name)
        for name in ("n", "top_k", "min_tokens", "max_tokens", "seed")
        for value in (0.01, "5", True, [1], {})
    ),
    *(({name: 2**63}, name) for name in ("n", "top_k", "min_tokens", "max_tokens")),
    *(({name: "yes"}, name) for name in ("stream", "ignore_eos", "include_stop_str_in_output")),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e6}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.0001}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e9}, "repetition_penalty"),
    ({"presence_penalty": 2.01}, "presence_penalty"),
    ({"frequency_penalty": -2.01}, "frequency_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 10**6}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**31 - 1}, "max_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a", "b" * 1025]}, "stop[1]"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"1.5": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {str(END + 1): 1}}, "logit_bias"),
    ({"logit_bias": {str(10**9): 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": {"1": None}}, "logit_bias"),
    ({"logit_bias": {str(k): 1 for k in range(301)}}, "logit_bias"),
    ({"stream_options": 5}, "stream_options"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"model": 5}, "model"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"suffix": "end"}, "suffix"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy"}}, "audio"),
    ({"guided_regex": "a+"}, "guided_regex"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
]
OF_COMPLETIONS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt[0]"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": [[65], []]}, "prompt[1]"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [[1, "a"]]}, "prompt[0][1]"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [END + 1]}, "prompt"),
    ({"prompt": [[1], [END + 1]]}, "prompt[1]"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": ["a"] * 200, "n": 6}, "n"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": 10**6}, "best_of"),
    ({"echo": "yes"}, "echo"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"echo": True, "max_tokens": 0}, "max_tokens"),
]
OF_CHAT = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [*USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user<|im_end|>", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "hi", "name": "a\nb"}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "content": "hi"}]}, "messages"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 1000}, "max_completion_tokens"),
    ({"max_completion_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"echo": True}, "echo"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ({"chat_template_kwargs": {"tokenizer": 1}}, "chat_template_kwargs.tokenizer"),
]


def id_of(value: Any) -> str | None:
    return repr(value)[:60] if isinstance(value, dict) else None


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("fields", "param"), BOTH + OF_COMPLETIONS, ids=id_of)
def test_completions_name_the_wrong_field(
    client: TestClient, engine: FakeEngine, fields: dict[str, Any], param: str, streams: bool
) -> None:
    response = post(client, COMPLETIONS, {"prompt": "hi", "stream": streams, **fields})
    assert error_of(response)["param"] == param
    assert not engine.streams


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("fields", "param"), BOTH + OF_CHAT, ids=id_of)
def test_chat_names_the_wrong_field(
    client: TestClient, engine: FakeEngine, fields: dict[str, Any], param: str, streams: bool
) -> None:
    response = post(client, CHAT, {"messages": USER, "stream": streams, **fields})
    assert error_of(response)["param"] == param
    assert not engine.streams


def post(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    """Like client.post(json=…), which refuses to write 1e400."""
    text = json.dumps(body).replace("Infinity", "1e400")
    return client.post(path, content=text, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt":"hi"}}',
        b'{"prompt":"hi","temperature":NaN}',
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"\\ud800 and more text"}',
        b'{"prompt":"hi","user":"\\udc00 and more text"}',
        b"[1]",
        b'"hi"',
        b"null",
        b'{"prompt":"hi","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
    ids=lambda body: repr(body[:30]),
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_a_body_that_is_no_json_object(client: TestClient, path: str, body: bytes) -> None:
    error = error_of(client.post(path, content=body, headers={"content-type": "application/json"}))
    assert error["type"] == "invalid_request_error"


def test_missing_field_is_named(client: TestClient) -> None:
    assert error_of(client.post(COMPLETIONS, json={}))["param"] == "prompt"
    assert error_of(client.post(CHAT, json={}))["param"] == "messages"


def test_content_type(client: TestClient) -> None:
    form = client.post(
        COMPLETIONS, content=b"a=b", headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert "application/json" in error_of(form)["message"]
    with_charset = {"content-type": "application/json; charset=utf-8"}
    assert client.post(COMPLETIONS, content=b'{"prompt":"hi"}', headers=with_charset).status_code == 200


def test_body_size_is_limited(client: TestClient) -> None:
    big = b'{"prompt":"' + b"a" * (32 * 1024 * 1024) + b'"}'
    headers = {"content-type": "application/json"}
    error_of(client.post(COMPLETIONS, content=big, headers=headers), 413)
    chunked = (big[k : k + 2**20] for k in range(0, len(big), 2**20))
    error_of(client.post(COMPLETIONS, content=chunked, headers=headers), 413)


def test_unknown_route_and_method(client: TestClient) -> None:
    error_of(client.get("/v1/nothing"), 404)
    wrong = client.get(CHAT)
    error_of(wrong, 405)
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": "hi"}), (CHAT, {"messages": USER})])
def test_model_name(client: TestClient, path: str, body: dict[str, Any]) -> None:
    error = error_of(client.post(path, json={**body, "model": "gpt-4"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    for name in ("toy", None, ""):
        assert client.post(path, json={**body, "model": name}).status_code == 200


def test_length_limit(client: TestClient, engine: FakeEngine) -> None:
    """prompt + max_tokens = limit is taken, one more is not; the figures are the real ones."""
    limit = engine.max_model_len
    for num_prompt_tokens, max_tokens, is_taken in [
        (limit - 2, 2, True),
        (limit - 2, 3, False),
        (limit - 1, 1, True),
        (limit - 1, None, True),
        (limit, 1, False),
        (limit, None, False),
        (limit + 1, None, False),
    ]:
        # The scripted chat template adds one token.
        messages = [{"role": "user", "content": "a" * (num_prompt_tokens - 1)}]
        for path, body in [
            (COMPLETIONS, {"prompt": "a" * num_prompt_tokens}),
            (CHAT, {"messages": messages}),
        ]:
            response = client.post(path, json={**body, "max_tokens": max_tokens})
            if is_taken:
                assert response.status_code == 200
                continue
            error = error_of(response)
            assert error["code"] == "context_length_exceeded"
            assert str(limit) in error["message"]
            assert str(num_prompt_tokens) in error["message"]


def test_hopeless_texts_are_not_tokenized(client: TestClient, engine: FakeEngine) -> None:
    """The scripted tokenizer's longest token has five characters, and 100 tokens fit."""
    tokenized = []
    engine.tokenizer.encode = lambda text, **_: tokenized.append(text) or [1]  # type: ignore[method-assign]
    for size, is_tokenized in [(500, True), (501, False)]:
        for path, body in [
            (COMPLETIONS, {"prompt": "a" * size}),
            (CHAT, {"messages": [{"role": "user", "content": "a" * size}]}),
        ]:
            tokenized.clear()
            response = client.post(path, json=body)
            assert bool(tokenized) == is_tokenized
            if not is_tokenized:
                assert error_of(response)["code"] == "context_length_exceeded"


def test_default_max_tokens(client: TestClient, engine: FakeEngine) -> None:
    """16 for completions, or what is left; to the end for chat."""
    client.post(COMPLETIONS, json={"prompt": "a"})
    client.post(COMPLETIONS, json={"prompt": "a" * 90})
    client.post(CHAT, json={"messages": USER})
    assert [params.max_tokens for _, params, _ in engine.submitted] == [16, 10, None]


def test_template_refusal_is_the_clients_error(client: TestClient) -> None:
    error = error_of(client.post(CHAT, json={"messages": [{"role": "assistant", "content": "hi"}]}))
    assert error["message"] == "a conversation must begin with the user"


def test_refusal_by_the_engine_names_the_clients_field(client: TestClient, engine: FakeEngine) -> None:
    engine.refusal = ParameterError("prompt_token_ids need 9 blocks, the pool has 4", "prompt_token_ids")
    error = error_of(client.post(COMPLETIONS, json={"prompt": "hi", "stream": True}))
    assert (error["param"], error["message"]) == ("prompt", "prompt need 9 blocks, the pool has 4")
    assert error_of(client.post(CHAT, json={"messages": USER}))["param"] == "messages"


def test_one_refused_prompt_refuses_the_request(client: TestClient, engine: FakeEngine) -> None:
    error_of(client.post(COMPLETIONS, json={"prompt": ["one", "two", "refuse me"]}))
    assert [stream.is_aborted for stream in engine.streams] == [True, True]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("error", [EngineDrainingError("x"), EngineDeadError("x")])
def test_engine_that_takes_nothing(
    client: TestClient, engine: FakeEngine, error: Exception, streams: bool
) -> None:
    engine.refusal = error
    response = client.post(COMPLETIONS, json={"prompt": "hi", "stream": streams})
    assert error_of(response, 503)["type"] == "unavailable_error"
    assert int(response.headers["retry-after"]) > 0


def test_fault_of_ours_shows_nothing_but_the_request_id(
    client: TestClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refusal = ZeroDivisionError("secret detail")
    response = client.post(COMPLETIONS, json={"prompt": "hi"}, headers={"x-request-id": "abc"})
    error = error_of(response, 500)
    assert error["type"] == "server_error"
    assert "abc" in error["message"]
    assert "secret" not in response.text
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_choice_that_fails(client: TestClient, engine: FakeEngine, path: str) -> None:
    steps = [*say("one")[:2], Step("", finish_reason="error", error="MemoryError: secret")]
    engine.script = lambda prompt, params: steps
    response = client.post(path, json={"prompt": "hi"} if path == COMPLETIONS else {"messages": USER})
    error_of(response, 500)
    assert "secret" not in response.text
    assert engine.streams[0].is_aborted


def test_every_optional_field_may_be_null(client: TestClient) -> None:
    for path, kind, body in [
        (COMPLETIONS, protocol.CompletionRequest, {"prompt": "hi"}),
        (CHAT, protocol.ChatCompletionRequest, {"messages": USER}),
    ]:
        nulls = dict.fromkeys((*kind.__struct_fields__, *protocol._REFUSED, *protocol._IGNORED)) | body
        assert client.post(path, json=nulls).status_code == 200
        for name in nulls.keys() - body.keys():
            assert client.post(path, json={**body, name: None}).status_code == 200, name


def test_harmless_values_of_refused_fields(client: TestClient) -> None:
    harmless = {
        "tools": [{"type": "function"}],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "suffix": "",
        "bad_words": [],
    }
    assert client.post(CHAT, json={"messages": USER, **harmless}).status_code == 200
    assert client.post(COMPLETIONS, json={"prompt": "hi", "n": 2, "best_of": 2}).status_code == 200


def test_unknown_fields_are_ignored_and_logged_once(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "octavo")
    for _ in range(2):
        body = {"prompt": "hi", "think_of_a_name": [1, 2], "user": "u"}
        assert client.post(COMPLETIONS, json=body).status_code == 200
    assert [record.getMessage() for record in caplog.records] == [
        "ignoring the unknown request field 'think_of_a_name'"
    ]


def test_api_key_guards_v1_only(engine: FakeEngine) -> None:
    client = TestClient(create_app(engine, api_key="secret"))
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic secret"},
        {"x-api-key": b"\xe9"},
    ):
        response = client.post(CHAT, json={"messages": USER}, headers=headers)
        assert error_of(response, 401)["code"] == "invalid_api_key"
    for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
        assert client.post(CHAT, json={"messages": USER}, headers=headers).status_code == 200
    for path in ("/health", "/v1/health", "/metrics", "/version", "/"):
        assert client.get(path).status_code == 200
