"""Request bodies, decoded and type-checked in one pass. A null field is an absent field.

Unknown fields are ignored, and logged once; fields that would change the answer and that this server does not
have are refused by name, unless their value asks for nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from octavo.server.errors import ApiError, invalid, unsupported

logger = logging.getLogger("octavo")

Int = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
T = TypeVar("T")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What completions and chat completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Int | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[str | Int | list[Int]]
    """A text, texts, a prompt's token ids, or several prompts' token ids."""
    logprobs: Int | None = None
    echo: bool | None = None
    best_of: Int | None = None
    add_special_tokens: bool | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, msgspec.Raw]] | None = None


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`prompt` or `messages` as vLLM takes them, or `content` as llama.cpp does."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[Int]


def _is_off(value: Any) -> bool:
    return value in (None, False, "", [], {})


def _is_one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value is None or value in values


# Field → is this value harmless, because it asks for what the server does anyway?
_REFUSED: Mapping[str, Callable[[Any], bool]] = {
    "suffix": _is_off,
    "functions": _is_off,
    "function_call": _is_one_of("none", "auto"),
    "tools": _is_off,
    "tool_choice": _is_one_of("none", "auto"),
    "response_format": _is_one_of({"type": "text"}),
    "modalities": _is_one_of(["text"]),
    "audio": _is_off,
    "web_search_options": lambda value: value is None,
    "structured_outputs": _is_off,
    "guided_json": _is_off,
    "guided_regex": _is_off,
    "guided_choice": _is_off,
    "guided_grammar": _is_off,
    "json_schema": _is_off,
    "regex": _is_off,
    "ebnf": _is_off,
    "grammar": _is_off,
    "stop_regex": _is_off,
    "prompt_logprobs": lambda value: value is None,
    "truncate_prompt_tokens": lambda value: value is None,
    "allowed_token_ids": _is_off,
    "bad_words": _is_off,
    "use_beam_search": _is_off,
    "documents": _is_off,
    "chat_template": _is_off,
    "continue_final_message": _is_off,
    "return_token_ids": _is_off,
    "return_tokens_as_token_ids": _is_off,
    "echo": _is_off,  # of chat; completions have it
    "add_special_tokens": _is_off,  # likewise: a chat's special tokens are the template's
}

# Fields that clients send and that ask for nothing here: hints, book-keeping.
_IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "verbosity",
        "parallel_tool_calls",
        "prediction",
        "moderation",
        "priority",
        "request_id",
        "session_id",
        "rid",
        "stream_interval",
        "include_reasoning",
        "separate_reasoning",
        "reasoning_format",
        "spaces_between_special_tokens",
        "timings_per_token",
        "cache_prompt",
    }
)
_MAX_WARNINGS = 100
_warned: set[str] = set()

_PATH = re.compile(r"^(?P<message>.*) - at `(?:key in )?\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")


def decode(body: bytes, kind: type[T]) -> T:
    """The body as a `kind`. Raises ApiError naming the field that is wrong."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        _check_other_fields(fields, kind)
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except msgspec.DecodeError as error:
        raise invalid(f"the request body is not valid JSON: {error}", None) from None
    except RecursionError:
        raise invalid("the request body is nested too deeply", None) from None


def _check_other_fields(fields: Mapping[str, msgspec.Raw], kind: type) -> None:
    """Refuse what the server does not have; remember what nobody knows."""
    known = set(kind.__struct_fields__)  # type: ignore[attr-defined]
    for name in fields.keys() - known - _IGNORED:
        is_harmless = _REFUSED.get(name)
        if is_harmless is None:
            _warn_unknown(name)
        elif not is_harmless(msgspec.json.decode(fields[name])) and not _is_moot(name, fields):
            raise unsupported(name, "" if name != "echo" else " in chat completions")


def _is_moot(name: str, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Tools that must not be called need not be supported."""
    return name == "tools" and bytes(fields.get("tool_choice", msgspec.Raw(b""))).strip() == b'"none"'


def _warn_unknown(name: str) -> None:
    if name not in _warned and len(_warned) < _MAX_WARNINGS:
        _warned.add(name)
        logger.warning("ignoring the unknown request field %.64r", name)


def _field_error(text: str) -> ApiError:
    """`Expected int, got str - at $.top_k` becomes an error of the field top_k."""
    match = _PATH.match(text)
    message, path = (match["message"], match["path"]) if match else (text, "")
    path = path.replace("[...]", "")
    missing = _MISSING.match(message)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return invalid(f"{path} is required", path)
    message = message.replace("`", "")
    message = message[:1].lower() + message[1:]
    return invalid(f"{path or 'the request body'}: {message}", path or None)
