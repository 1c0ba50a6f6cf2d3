"""Flags made from the fields of the settings: one source for name, type, default and help."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import click

from octavo.config import DEFAULT_MODEL, PARTS
from octavo.params import SamplingParams

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

SAMPLING_FIELDS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
)
TERMINAL_DEFAULTS: dict[str, Any] = {"max_tokens": 512, "temperature": 0.7}
"""Where a person at a terminal is better served than by the API's defaults."""

COUNT = click.IntRange(1)

_UNIT_BYTES = {"": 1, "b": 1} | {
    f"{letter}{infix}b": base**power
    for power, letter in enumerate("kmgt", 1)
    for infix, base in (("i", 1024), ("", 1000))
}


def byte_size(value: str) -> int:
    """A number of bytes from 536870912, 512MiB or 1.5GB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-zA-Z]*)", value.strip())
    unit_bytes = _UNIT_BYTES.get(match[2].lower()) if match else None
    if match is None or unit_bytes is None:
        raise click.BadParameter(f"{value!r} is not a size such as 512MiB or 1GiB")
    return int(float(match[1]) * unit_bytes)


def int_list(value: str) -> list[int]:
    """Whole numbers above 0 from 1,2,3."""
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{value!r} is not a list such as 16,100,1000")
    return numbers


def name_list(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A type for some of `names`, with commas between."""

    def parse(value: str) -> list[str]:
        chosen = value.split(",")
        if unknown := [name for name in chosen if name not in names]:
            raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(names)}")
        return chosen

    return parse


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All fields of octavo.config as flags, also read from OCTAVO_<NAME>. None where nothing was given."""
    for part in reversed(PARTS.values()):
        docs = field_docs(part)
        for field in reversed(dataclasses.fields(part)):
            command = _option(part, field, docs.get(field.name, ""), envvar=f"OCTAVO_{field.name.upper()}")(
                command
            )
    return command


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The fields of SamplingParams that one answer on a terminal needs. None where nothing was given."""
    docs = field_docs(SamplingParams)
    fields = {field.name: field for field in dataclasses.fields(SamplingParams)}
    for name in reversed(SAMPLING_FIELDS):
        command = _option(SamplingParams, fields[name], docs[name])(command)
    return command


def env_option(flag: str, **settings: Any) -> Decorator:
    """--like-this, also read from OCTAVO_LIKE_THIS."""
    envvar = "OCTAVO_" + flag.removeprefix("--").replace("-", "_").upper()
    return click.option(flag, envvar=envvar, show_envvar=True, show_default=True, **settings)


def model_option(command: Callable[..., Any]) -> Callable[..., Any]:
    text = "A name, a path to a GGUF, pypi:PACKAGE or org/repo[:QUANT]."
    return env_option("--model", default=DEFAULT_MODEL, help=text)(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user set; the settings have the defaults of the others."""
    return {name: value for name, value in options.items() if value is not None}


def take_sampling_params(options: dict[str, Any]) -> SamplingParams:
    """Removes the sampling options from `options` and makes SamplingParams of them."""
    chosen = given({name: options.pop(name) for name in SAMPLING_FIELDS})
    return SamplingParams(**(TERMINAL_DEFAULTS | chosen))


def field_docs(owner: type) -> dict[str, str]:
    """Field → the string that stands under it, in one line. Empty where the source is not at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:
        return {}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(doc.value.value).split())
        for field, doc in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
    }


def _option(owner: type, field: dataclasses.Field[Any], doc: str, envvar: str | None = None) -> Decorator:
    """A flag --like-this of a field's type. It gives None by default; the help shows the field's default."""
    flag = field.name.replace("_", "-")
    kind = typing.get_type_hints(owner)[field.name]
    default = TERMINAL_DEFAULTS.get(field.name, field.default) if owner is SamplingParams else field.default
    settings: dict[str, Any] = {
        "default": None,
        "envvar": envvar,
        "show_envvar": envvar is not None,
        "help": doc,
    }
    if kind is bool:
        settings["show_default"] = f"--{flag}" if default else f"--no-{flag}"
        return click.option(f"--{flag}/--no-{flag}", field.name, **settings)
    if kind == tuple[str, ...]:
        return click.option(f"--{flag}", field.name, **(settings | {"multiple": True}))
    if default is not None:
        settings["show_default"] = str(default)
    return click.option(f"--{flag}", field.name, type=_click_type(field.name, kind), **settings)


def _click_type(name: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType):  # int | None
        kind = next(member for member in typing.get_args(kind) if member is not types.NoneType)
    if typing.get_origin(kind) is Literal:
        return click.Choice(typing.get_args(kind))
    if name.endswith("_memory"):
        return byte_size
    return kind
