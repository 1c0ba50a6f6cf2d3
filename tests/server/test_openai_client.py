"""The official client reads everything that this server writes."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from server.fake_engine import FakeEngine, Step, say
from server.live_server import live_server


@pytest.fixture
def openai_client(engine: FakeEngine) -> Iterator[openai.OpenAI]:
    with live_server(engine, api_key="secret") as base:
        yield openai.OpenAI(base_url=f"{base}/v1", api_key="secret", max_retries=0)


def test_models(openai_client: openai.OpenAI) -> None:
    (model,) = openai_client.models.list().data
    assert model == openai_client.models.retrieve("toy")


def test_chat(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.num_cached_tokens = 2
    engine.script = lambda prompt, params: say("né", top=params.logprobs)
    answer = openai_client.chat.completions.create(
        model="toy",
        messages=[{"role": "user", "content": "hi"}],
        logprobs=True,
        top_logprobs=2,
        extra_body={"top_k": 3},
    )
    assert answer.choices[0].message.content == "né"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert (
        bytes(b for token in answer.choices[0].logprobs.content for b in token.bytes or []).decode() == "né"
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert engine.submitted[0][1].top_k == 3


def test_chat_stream(openai_client: openai.OpenAI) -> None:
    chunks = list(
        openai_client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == "Hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_completions(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = lambda prompt, params: say(bytes(prompt).decode() + "!", top=params.logprobs)
    answer = openai_client.completions.create(model="toy", prompt=["a", "b"], logprobs=1)
    assert [choice.text for choice in answer.choices] == ["a!", "b!"]
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.text_offset == [0, 1]
    stream = openai_client.completions.create(model="toy", prompt=[97], stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "a!"


def test_errors_are_the_clients_exceptions(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.completions.create(model="toy", prompt="a" * 101, stream=True)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "prompt"
    with pytest.raises(openai.NotFoundError):
        openai_client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.AuthenticationError):
        openai_client.with_options(api_key="wrong").models.list()
    engine.script = lambda prompt, params: [*say("one")[:2], Step("", finish_reason="error")]
    with pytest.raises(openai.APIError, match="request id"):
        list(openai_client.completions.create(model="toy", prompt="a", stream=True))
