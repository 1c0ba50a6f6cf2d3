"""run and chat: what the engine is asked, what is printed, and how Ctrl-C and errors end an answer."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from click.testing import Result

from octavo.params import ParameterError

Octavo = Callable[..., Result]


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupt_twice() -> None:
    interrupt()
    interrupt()


def refuse() -> None:
    raise ParameterError("2,000 tokens, at most 64 fit", "prompt")


def test_run_streams_one_answer(call: Octavo, llm_class: type) -> None:
    result = call(
        "run", "Hi", "--model", "m", "--num-threads", "1", "--temperature", "0", "--system", "Be brief"
    )
    (llm,) = llm_class.made
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert (llm.model, llm.options) == ("m", {"num_threads": 1})
    assert llm.conversations == [
        [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    ]
    assert llm.params[0].temperature == 0
    assert llm.num_ended_streams == 1


def test_run_reads_stdin(call: Octavo, llm_class: type) -> None:
    call("run", "-", input="two\nlines")
    assert llm_class.made[0].conversations[0][0]["content"] == "two\nlines"


def test_run_raw_leaves_the_template_out(call: Octavo, llm_class: type) -> None:
    call("run", "--raw", "AB")
    assert llm_class.made[0].conversations == []
    assert llm_class.made[0].prompts == [[65, 66]]
    assert call("run", "--raw", "--system", "x", "AB").exit_code == 2


def test_run_json(call: Octavo, llm_class: type) -> None:
    report = json.loads(call("run", "Hi", "--json").stdout)
    assert report.pop("seconds") >= 0
    assert report == {
        "model": "smollm2-135m",
        "text": "Hello",
        "finish_reason": "stop",
        "num_prompt_tokens": 1,
        "num_output_tokens": 2,
        "num_cached_tokens": 3,
    }


def test_a_stopped_run_shows_what_there_is(
    call: Octavo, llm_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_class, "pieces", ("He", interrupt, "never", "seen"))
    before = signal.getsignal(signal.SIGINT)
    result = call("run", "Hi")
    assert (result.exit_code, result.stdout) == (1, "He\n")
    assert llm_class.made[0].num_ended_streams == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait_for_the_step(
    call: Octavo, llm_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    after: list[str] = []
    monkeypatch.setattr(llm_class, "pieces", (interrupt_twice, lambda: after.append("never")))
    result = call("run", "Hi")
    assert (result.exit_code, result.stderr.strip()) == (1, "Aborted!")
    assert after == []


def test_a_prompt_that_is_refused_is_one_line(
    call: Octavo, llm_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_class, "pieces", (refuse,))
    result = call("run", "Hi")
    assert (result.exit_code, result.stderr) == (1, "octavo: prompt: 2,000 tokens, at most 64 fit\n")


def test_chat_sends_the_turns_before(call: Octavo, llm_class: type) -> None:
    result = call("chat", "--system", "S", input="one\n\ntwo\n/reset\nthree\n/exit\nfour\n")
    system = {"role": "system", "content": "S"}
    assert llm_class.made[0].conversations == [
        [system, {"role": "user", "content": "one"}],
        [
            system,
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "two"},
        ],
        [system, {"role": "user", "content": "three"}],
    ]
    assert (result.exit_code, result.stdout) == (0, "Hello\nHello\nHello\n")


def test_the_end_of_the_input_leaves_chat(call: Octavo, llm_class: type) -> None:
    assert call("chat", input="").exit_code == 0


def test_ctrl_c_stops_an_answer_and_not_the_chat(
    call: Octavo, llm_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_class, "pieces", ("He", interrupt, "never"))
    result = call("chat", input="one\ntwo\n")
    assert result.stdout == "He\nHe\n\n"
    assert llm_class.made[0].conversations[1][1] == {"role": "assistant", "content": "He"}


def test_a_refused_turn_is_taken_back(call: Octavo, llm_class: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_class, "pieces", (refuse,))
    result = call("chat", input="one\ntwo\n")
    assert result.exit_code == 0
    assert result.stderr.count("octavo: prompt: 2,000 tokens, at most 64 fit\n") == 2
    assert llm_class.made[0].conversations[1] == [{"role": "user", "content": "two"}]
