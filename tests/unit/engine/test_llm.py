"""Offline inference as users of vLLM's offline API write it, on a toy model."""

from __future__ import annotations

import math
from itertools import zip_longest
from pathlib import Path

import pytest

from octavo import LLM, ParameterError, SamplingParams
from octavo.config import ConfigError
from octavo.engine.engine import Engine
from octavo.engine.outputs import RequestDelta
from octavo.engine.pace import PATIENCE

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(toy_path: Path) -> LLM:
    return LLM(str(toy_path), num_blocks=128, num_threads=1)


def test_texts_and_ids_answer_in_order(llm: LLM) -> None:
    text = "The quick brown fox"
    ids = llm.tokenizer.encode(text)
    by_text, by_ids = llm.generate([text, ids], GREEDY)
    assert by_text.prompt == text
    assert by_ids.prompt is None
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == ids
    assert by_text.outputs[0].token_ids == by_ids.outputs[0].token_ids
    assert len(by_text.outputs[0].token_ids) == 6
    assert by_text.outputs[0].text == llm.tokenizer.decode(by_text.outputs[0].token_ids)
    assert by_text.outputs[0].finish_reason == "length"
    assert by_text.finished


def test_one_prompt_may_stand_alone(llm: LLM) -> None:
    assert len(llm.generate("abc", GREEDY)) == 1
    assert len(llm.generate([1, 2, 3], GREEDY)) == 1
    assert llm.generate([], GREEDY) == []


def test_cached_tokens_are_reported(llm: LLM) -> None:
    prompt = [(7 * i) % 500 for i in range(40)]
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 39


def test_logprobs_are_one_dict_a_token(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)
    output = llm.generate([5, 6, 7], params)[0].outputs[0]
    assert output.logprobs is not None
    assert len(output.logprobs) == 4
    for token_id, candidates in zip(output.token_ids, output.logprobs, strict=True):
        assert candidates[token_id].rank == 1
        assert len(candidates) == 2
        assert candidates[token_id].decoded_token == llm.tokenizer.token_text(token_id)
    total = sum(c[t].logprob for t, c in zip(output.token_ids, output.logprobs, strict=True))
    assert output.cumulative_logprob is not None
    assert math.isclose(output.cumulative_logprob, total)


def test_n_choices_and_params_per_prompt(llm: LLM) -> None:
    sampled = SamplingParams(temperature=1.0, n=3, seed=5, max_tokens=4, ignore_eos=True)
    first, second = llm.generate([[1, 2, 3], [1, 2, 3]], [sampled, GREEDY])
    assert [o.index for o in first.outputs] == [0, 1, 2]
    assert len(second.outputs) == 1
    with pytest.raises(ParameterError, match="2 prompts, but 1"):
        llm.generate([[1], [2]], [GREEDY])


def test_stop_string_is_cut_and_named(llm: LLM) -> None:
    free = llm.generate([9, 8, 7], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))[
        0
    ].outputs[0]
    stop = free.text[3:5]
    stopped = llm.generate(
        [9, 8, 7], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=stop)
    )[0].outputs[0]
    assert stopped.finish_reason == "stop"
    assert stopped.stop_reason == stop
    assert stopped.text == free.text[: free.text.index(stop)]
    kept = llm.generate(
        [9, 8, 7],
        SamplingParams(
            temperature=0.0, max_tokens=12, ignore_eos=True, stop=stop, include_stop_str_in_output=True
        ),
    )[0].outputs[0]
    assert kept.text == free.text[: free.text.index(stop) + len(stop)]


def test_stop_token_is_in_the_ids_but_not_in_the_text(llm: LLM) -> None:
    free = llm.generate([9, 8, 7], GREEDY)[0].outputs[0]
    stop_id = free.token_ids[3]
    first = free.token_ids.index(stop_id)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, stop_token_ids=(stop_id,))
    stopped = llm.generate([9, 8, 7], params)[0].outputs[0]
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.stop_reason == stop_id
    assert stopped.text == llm.tokenizer.decode(free.token_ids[:first])


def test_a_refused_prompt_leaves_the_engine_clean(llm: LLM) -> None:
    with pytest.raises(ParameterError) as refused:
        llm.generate([[1, 2, 3], [100_000]], GREEDY)
    assert refused.value.param == "prompt"
    with pytest.raises(ParameterError, match="empty"):
        llm.generate([[1, 2], []], GREEDY)
    assert not llm._engine.has_unfinished
    assert len(llm.generate([1, 2, 3], GREEDY)[0].outputs[0].token_ids) == 6


def test_streams_may_interleave_and_be_left(llm: LLM) -> None:
    whole = llm.generate([[3, 1, 4], [1, 5, 9]], GREEDY)
    first, second = llm.stream([3, 1, 4], GREEDY), llm.stream([1, 5, 9], GREEDY)
    got: list[list[int]] = [[], []]
    for deltas in zip_longest(first, second):
        for ids, delta in zip(got, deltas, strict=True):
            ids.extend(delta.choices[0].token_ids if delta is not None else ())
    assert got == [output.outputs[0].token_ids for output in whole]
    left = llm.stream([2, 7, 1], GREEDY)
    next(left)
    left.close()
    assert llm._engine.unfinished_ids == []


ANSWERS = {
    "to the end": {"max_tokens": 21, "ignore_eos": True},
    "to a stop token": {"max_tokens": 21},
    "to a stop string": {"max_tokens": 21, "ignore_eos": True, "stop": "e"},
    "drawn": {"max_tokens": 21, "ignore_eos": True, "temperature": 1.0, "seed": 3},
    "short": {"max_tokens": 2, "ignore_eos": True},
}


def test_several_rounds_a_step_give_the_same_answers(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[(7 * i + j * j) % 500 for j in range(9 + i)] for i in range(4)]
    stop = llm.generate(prompts[0], SamplingParams(temperature=0.0, max_tokens=21, ignore_eos=True))
    stop_ids = (stop[0].outputs[0].token_ids[11],)
    num_steps = {}
    for name, options in ANSWERS.items():
        more = {"stop_token_ids": stop_ids} if name == "to a stop token" else {}
        params = SamplingParams(**{"temperature": 0.0, **options, **more})  # type: ignore[arg-type]
        before = llm.num_steps
        many = llm.generate(prompts, params)
        num_steps[name] = llm.num_steps - before
        with monkeypatch.context() as patch:
            patch.setattr("octavo.engine.pace.MAX_ROUNDS", 1)
            assert [o.outputs for o in llm.generate(prompts, params)] == [o.outputs for o in many]
    assert num_steps["to the end"] == 1 + 8 / 8 + 8 / 8 + 1, "20 tokens after the first"
    assert num_steps["drawn"] == 21
    assert num_steps["short"] == 2


def test_a_stream_is_not_held_up_by_answers_that_nobody_watches(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    step = Engine.step

    def spy(engine: Engine, patience: float = 0.0) -> list[RequestDelta]:
        seen.append(patience)
        return step(engine, patience)

    monkeypatch.setattr(Engine, "step", spy)
    stream = llm.stream([3, 1, 4], GREEDY)
    got = list(next(stream).choices[0].token_ids)
    llm.generate([1, 5, 9], GREEDY)
    got += [token for delta in stream for token in delta.choices[0].token_ids]
    assert set(seen) == {PATIENCE}
    assert got == llm.generate([3, 1, 4], GREEDY)[0].outputs[0].token_ids
    assert seen[-1] == math.inf


def test_chat_uses_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    output = llm.chat(messages, GREEDY)[0]
    assert output.prompt_token_ids == llm.encode_chat(messages)
    assert len(llm.chat([messages, messages], GREEDY)) == 2


def test_an_unknown_option_is_named(toy_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_length"):
        LLM(str(toy_path), max_model_length=12)
    with pytest.raises(ConfigError, match="block_size"):
        LLM(str(toy_path), block_size=5)
