"""Log-probabilities as the two APIs write them: numbers finite, tokens as text, bytes and offsets."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence

from octavo.batch import TokenLogprob
from octavo.server.engine_protocol import Tokenizer
from octavo.server.responses import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""

TokenEntries = Sequence[Sequence[TokenLogprob]]


def token_label(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; for a part of a character `bytes:` and its bytes, so that labels stay distinct."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode() or tokenizer.token_text(token_id)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokenizer: Tokenizer, entries: TokenEntries) -> ChatLogprobs:
    """Each entry: first the sampled token, then the most likely ones."""

    def describe(entry: TokenLogprob) -> ChatTokenLogprob:
        label = token_label(tokenizer, entry.token_id)
        return ChatTokenLogprob(label, _finite(entry.logprob), list(tokenizer.token_bytes(entry.token_id)))

    content = []
    for sampled, *likeliest in entries:
        described = describe(sampled)
        described.top_logprobs = [describe(entry) for entry in likeliest]
        content.append(described)
    return ChatLogprobs(content)


class CompletionLogprobWriter:
    """Writes the logprobs of one choice, part by part; offsets go on from one part to the next.

    A token that ends inside a character adds no text; the one that completes it adds the character.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def write(self, entries: TokenEntries, text_len: int | None) -> CompletionLogprobs:
        """`text_len`: characters of the whole text, once it has ended; a stop string may have cut it."""
        result = CompletionLogprobs([], [], [], [])
        for sampled, *likeliest in entries:
            result.tokens.append(token_label(self._tokenizer, sampled.token_id))
            result.token_logprobs.append(_finite(sampled.logprob))
            result.top_logprobs.append(
                {
                    token_label(self._tokenizer, entry.token_id): _finite(entry.logprob)
                    for entry in (*likeliest, sampled)
                }
            )
            result.text_offset.append(self._offset if text_len is None else min(self._offset, text_len))
            self._advance(sampled.token_id)
        return result

    def _advance(self, token_id: int) -> None:
        if token_id not in self._skipped:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB
