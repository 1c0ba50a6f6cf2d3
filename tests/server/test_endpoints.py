"""The small endpoints: models, health, version, tokenize, detokenize, metrics; and request ids."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from octavo.server.app import create_app
from server.fake_engine import END, FakeEngine


def test_models(client: TestClient) -> None:
    body = client.get("/v1/models").json()
    card = client.get("/v1/models/toy").json()
    assert body == {"object": "list", "data": [card]}
    assert (card["id"], card["object"], card["owned_by"]) == ("toy", "model", "octavo")
    assert card["max_model_len"] == 100
    assert isinstance(card["created"], int)
    missing = client.get("/v1/models/org/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_model_names_may_hold_slashes() -> None:
    client = TestClient(create_app(FakeEngine(model_name="org/model:Q4")))
    assert client.get("/v1/models/org/model:Q4").json()["id"] == "org/model:Q4"


def test_health(client: TestClient, engine: FakeEngine) -> None:
    for path in ("/health", "/v1/health"):
        assert client.get(path).json() == {"status": "ok"}
    engine.is_healthy = False
    response = client.get("/health")
    assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")


def test_health_fails_while_draining(client: TestClient) -> None:
    client.app.state.context.is_draining = True  # type: ignore[attr-defined]
    assert client.get("/health").status_code == 503


def test_version_and_home(client: TestClient) -> None:
    version = client.get("/version").json()["version"]
    home = client.get("/").text
    assert version in home
    assert "toy" in home


def test_metrics_are_the_engines(client: TestClient) -> None:
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'vllm:num_requests_running{engine="0",model_name="toy"} 0.0' in response.text


def test_tokenize_like_vllm(client: TestClient, engine: FakeEngine) -> None:
    answer = {"count": 2, "max_model_len": 100, "tokens": [97, 98]}
    assert client.post("/tokenize", json={"prompt": "ab"}).json() == answer
    with_texts = client.post("/v1/tokenize", json={"model": "toy", "prompt": "ab", "return_token_strs": True})
    assert with_texts.json() == {**answer, "token_strs": ["a", "b"]}
    chat = {"messages": [{"role": "user", "content": "ab"}], "add_generation_prompt": False}
    assert client.post("/tokenize", json=chat).json()["tokens"] == list(b"ab>")
    assert engine.chats[0][1]["add_generation_prompt"] is False


def test_tokenize_like_llama_cpp(client: TestClient) -> None:
    assert client.post("/tokenize", json={"content": "ab"}).json() == {"tokens": [97, 98]}
    pieces = client.post("/tokenize", json={"content": "aé", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert client.post("/tokenize", json={"content": ""}).json() == {"tokens": []}


def test_detokenize(client: TestClient) -> None:
    body = client.post("/detokenize", json={"tokens": [*"né".encode(), END]}).json()
    assert body == {"prompt": "né<end>", "content": "né<end>"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "content"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [65, END + 1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_mistakes_name_the_field(client: TestClient, path: str, body: object, param: str) -> None:
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_request_ids(client: TestClient) -> None:
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = {client.get("/v1/nothing").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in (b"a b", b"\xe9", b"x" * 129):
        given = client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert given.encode() != bad


def test_equal_request_ids_are_different_requests(client: TestClient, engine: FakeEngine) -> None:
    for _ in range(2):
        body = {"prompt": "hi", "request_id": "same"}
        client.post("/v1/completions", json=body, headers={"x-request-id": "same"})
    assert len({stream.request_id for stream in engine.streams}) == 2


def test_log_has_no_prompts_and_no_health_checks(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "octavo")
    client.get("/health")
    client.get("/metrics")
    client.post("/v1/completions", json={"prompt": "a secret"}, headers={"x-request-id": "id-1"})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "octavo"]
    assert line.startswith("POST '/v1/completions' 200 ")
    assert line.endswith(" id-1")
