"""`octavo run "PROMPT"`: one answer."""

from __future__ import annotations

import sys
from typing import Any

import click

from octavo.cli.options import (
    engine_options,
    given,
    json_option,
    model_option,
    sampling_options,
    take_sampling_params,
)
from octavo.cli.terminal import fetch, print_json


@click.command()
@click.argument("prompt")
@model_option
@click.option("--raw", is_flag=True, help="Go on from PROMPT itself, without the model's chat template.")
@click.option("--system", help="A system message before the prompt.")
@json_option
@sampling_options
@engine_options
def run(prompt: str, model: str, raw: bool, system: str | None, as_json: bool, **options: Any) -> None:
    """Answer PROMPT, streamed to the terminal. PROMPT - reads it from stdin."""
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out")
    params = take_sampling_params(options)
    text = sys.stdin.read() if prompt == "-" else prompt
    fetch(model)
    from octavo import LLM
    from octavo.cli.answer import stream_answer

    llm = LLM(model, **given(options))
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    ids = llm.tokenizer.encode(text) if raw else llm.encode_chat(messages)
    answer = stream_answer(llm, ids, params, _ignore if as_json else _write)
    llm.close()
    if as_json:
        print_json(
            {
                "model": model,
                "text": answer.text,
                "finish_reason": answer.finish_reason,
                "num_prompt_tokens": len(ids),
                "num_output_tokens": answer.num_tokens,
                "num_cached_tokens": answer.num_cached_tokens,
                "seconds": round(answer.seconds, 4),
            }
        )
    else:
        click.echo()
    if answer.finish_reason == "abort":
        click.get_current_context().exit(1)


def _write(text: str) -> None:
    click.echo(text, nl=False)


def _ignore(text: str) -> None:
    pass
