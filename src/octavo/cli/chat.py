"""`octavo chat`: a conversation."""

from __future__ import annotations

import sys
from typing import Any

import click

from octavo.cli.options import engine_options, given, model_option, sampling_options, take_sampling_params
from octavo.cli.terminal import fetch
from octavo.params import SamplingParams

HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


@click.command()
@model_option
@click.option("--system", help="A system message that opens the conversation.")
@sampling_options
@engine_options
def chat(model: str, system: str | None, **options: Any) -> None:
    """Hold a conversation. /reset forgets it, /exit or Ctrl-D leaves, Ctrl-C stops an answer."""
    params = take_sampling_params(options)
    fetch(model)
    from octavo import LLM

    llm = LLM(model, **given(options))
    click.echo(f"{model}: {HELP}", err=True)
    Conversation(llm, params, system).hold()
    llm.close()


class Conversation:
    """Messages so far. Each turn finds the K and V of the turns before in the prefix cache."""

    def __init__(self, llm: Any, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system is not None else []
        self.messages = list(self._opening)

    def hold(self) -> None:
        """Until Ctrl-D or /exit."""
        _enable_line_editing()
        while (line := _read_line()) is not None:
            text = line.strip()
            if text == "/exit":
                return
            if text == "/reset":
                self.messages = list(self._opening)
            elif text in ("/help", "/?"):
                click.echo(HELP)
            elif text:
                self.turn(text)

    def turn(self, text: str) -> None:
        """Ask and answer. A message that cannot be answered is taken back, and the reason printed."""
        from octavo.cli.answer import stream_answer

        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            ids = self._llm.encode_chat(messages)
            answer = stream_answer(self._llm, ids, self._params, _write)
        except ValueError as error:
            from octavo.cli.app import error_line

            click.echo(f"octavo: {error_line(error)}", err=True)
            return
        click.echo()
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]


def _write(text: str) -> None:
    click.echo(text, nl=False)


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401  (its import gives input() a history)
    except ImportError:  # a Python built without it still chats
        return


def _read_line() -> str | None:
    """The next line; None at the end of the input. Ctrl-C drops the line that is being typed."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            click.echo()
            return None
        except KeyboardInterrupt:
            click.echo()
