"""Conversations to text, by the template that a model was trained with, and on to token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.params import ParameterError
from octavo.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""For models that bring no template but have ChatML's tokens."""

_MARKERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Unicode's noncharacters: no text has a use for them."""


class ChatTemplateError(ValueError):
    """A template that is broken, or that refuses these messages. The message is fit for the client."""


class ChatTemplate:
    """A compiled template in the environment of the transformers library, which templates are written for.

    Immutable, and sandboxed: a template sees its variables and nothing of the process.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        """Raises ChatTemplateError if `source` is no template."""
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is broken at line {error.lineno}: {error.message}"
            ) from None

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation. `variables` are the template's own, such as enable_thinking.

        Raises ChatTemplateError, with the template's words, if it refuses the messages.
        """
        values = {**self._tokens, **variables, "messages": messages, "tools": tools, "documents": documents}
        try:
            return self._template.render(values, add_generation_prompt=add_generation_prompt)
        except ChatTemplateError:
            raise
        except Exception as error:  # a template can fail like any program
            raise ChatTemplateError(f"the chat template cannot render these messages: {error}") from None


def chat_template_of(metadata: Mapping[str, object], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template in a GGUF file's metadata or, where it has none, ChatML if the vocabulary knows it.

    None for a model that was not made to chat. Raises ChatTemplateError if the file's template is broken.
    """
    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        if tokenizer.special_id("<|im_start|>") is None or tokenizer.special_id("<|im_end|>") is None:
            return None
        source = CHATML
    return ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate | None, messages: Messages, **variables: Any
) -> list[int]:
    """The token ids of a conversation. Control tokens come from the template only.

    A message that spells one (a user who types "<|im_end|>") gets the tokens of that text and ends no turn.
    BOS is there if the template writes it. `variables` are those of ChatTemplate.render; like the messages,
    they are not trusted. Raises ChatTemplateError if the template refuses the messages, and
    ParameterError("messages") for a model without one.
    """
    if template is None:
        raise ParameterError(
            "this model has no chat template; give it a prompt to go on from "
            "(LLM.generate, /v1/completions, octavo run --raw)",
            "messages",
        )
    values = {"messages": messages, **variables}
    try:
        return tokenizer.encode_pieces(_render_pieces(tokenizer, template, values))
    except RecursionError:
        raise ChatTemplateError("the messages are nested too deeply") from None


def _render_pieces(tokenizer: Tokenizer, template: ChatTemplate, values: dict[str, Any]) -> list[str | int]:
    """The rendered text, cut into plain text and the ids of the template's control tokens."""
    pieces = tokenizer.split_special(template.render(**values))
    guard = _Guard(tokenizer, template, values)
    if not guard.is_needed:
        return pieces
    # Once more, with messages that cannot spell a control token. As long as that makes no difference to the
    # control tokens, the first text is right, and the template has seen the messages as they are.
    guarded = tokenizer.split_special(template.render(**guard.protect(values)))
    if _control_ids(guarded) == _control_ids(pieces):
        return pieces
    return [guard.remove(piece) if isinstance(piece, str) else piece for piece in guarded]


def _control_ids(pieces: list[str | int]) -> list[int]:
    return [piece for piece in pieces if isinstance(piece, int)]


class _Guard:
    """Keeps the texts of messages from spelling control tokens, alone or joined or cut by the template.

    It sets a marker on both sides of every punctuation character that control tokens are written with, so
    that none can hold such a character of a message. Names made of letters, like roles, stay as they are;
    only a whole control token without punctuation is broken.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, values: Mapping[str, Any]) -> None:
        texts = list(_strings_in(values))
        used = "".join([template.source, *texts])
        self._marker = next((marker for marker in _MARKERS if marker not in used), "")
        if not self._marker:
            raise ChatTemplateError("the messages hold every noncharacter from U+FDD0 to U+FDEF")
        punctuation = {text: set(filter(_is_punctuation, text)) for text in tokenizer.special_texts}
        self._words = [text for text, found in punctuation.items() if not found]
        self._table = {ord(c): f"{self._marker}{c}{self._marker}" for c in set().union(*punctuation.values())}
        self.is_needed = any(self._protect(text) != text for text in texts)

    def protect(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: _map_strings(value, self._protect) for name, value in values.items()}

    def remove(self, text: str) -> str:
        return text.replace(self._marker, "")

    def _protect(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, self._marker.join(word))
        return text.translate(self._table)


def _is_punctuation(char: str) -> bool:
    return not (char.isalnum() or char in "_ ")


def _strings_in(value: Any) -> Iterator[str]:
    """Every string in nested data, keys of mappings included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings_in(key)
            yield from _strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings_in(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every string in it changed, keys of mappings included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model has to learn; here it is only text."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the escapes for HTML that jinja2's own filter adds."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise ChatTemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
