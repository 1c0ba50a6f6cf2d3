"""Token ids to text, one at a time, as a stream needs it."""

from __future__ import annotations

import codecs
from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol


class TokenBytes(Protocol):
    """What the detokenizer needs of a tokenizer."""

    @property
    def special_token_ids(self) -> Set[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The text that one token adds to the stream."""

    text: str
    stop: str | None = None
    """The stop string that is now complete; the text ends there."""


class Detokenizer:
    """The text of a growing list of tokens.

    Held back: bytes of an unfinished character, and the text at the end that may still become a stop string.
    Nothing else, so the pieces together with flush() are the text of all tokens.
    The stop string that is complete first ends the text, wherever the tokens' borders are; the longest one if
    several are complete with the same character. Work per token depends on the token, not on the text before.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        """`include_stop` leaves the stop string at the end of the text."""
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matchers = [_StopMatcher(text) for text in sorted(stop, key=len, reverse=True)]
        self._include_stop = include_stop
        self._held = ""
        self._pieces: list[str] = []
        self._stop: str | None = None

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._pieces)

    def push(self, token_id: int, *, check_stop: bool = True) -> TextPiece:
        """Add one token. Without check_stop its text ends nothing and begins no stop string.

        Tokens after a stop add nothing. Raises ValueError for an id outside the vocabulary.
        """
        data = self._tokenizer.token_bytes(token_id)
        if self._stop is not None or token_id in self._hidden:
            return TextPiece("", self._stop)
        text = self._decoder.decode(data)
        if check_stop and self._matchers:
            return self._emit_checked(text)
        for matcher in self._matchers:
            matcher.reset()
        return self._emit(self._release() + text)

    def flush(self) -> str:
        """The text still held back, at the end of the stream."""
        if self._stop is not None:
            return ""
        return self._emit(self._release() + self._decoder.decode(b"", final=True)).text

    def _emit_checked(self, text: str) -> TextPiece:
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            # Every matcher sees every character; the first complete one is the longest.
            complete = [matcher for matcher in self._matchers if matcher.advance(char)]
            if complete:
                self._stop = complete[0].stop
                return self._emit(pending[: end if self._include_stop else end - len(self._stop)])
        num_held = max((matcher.matched_len for matcher in self._matchers), default=0)
        split = len(pending) - num_held
        self._held = pending[split:]
        return self._emit(pending[:split])

    def _release(self) -> str:
        held, self._held = self._held, ""
        return held

    def _emit(self, text: str) -> TextPiece:
        if text:
            self._pieces.append(text)
        return TextPiece(text, self._stop)


class _StopMatcher:
    """How much of one stop string the text ends with (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched_len = 0
        self._fallback = _fallback_lengths(stop)

    def reset(self) -> None:
        self.matched_len = 0

    def advance(self, char: str) -> bool:
        """Take the next character of the text; True if the stop string is now complete."""
        length = self.matched_len
        while length and self.stop[length] != char:
            length = self._fallback[length]
        if self.stop[length] == char:
            length += 1
        self.matched_len = length
        return length == len(self.stop)


def _fallback_lengths(stop: str) -> list[int]:
    """For each length n, the longest proper prefix of stop[:n] that it ends with as well."""
    lengths = [0, 0]
    for char in stop[1:]:
        length = lengths[-1]
        while length and stop[length] != char:
            length = lengths[length]
        lengths.append(length + 1 if stop[length] == char else 0)
    return lengths
