"""The detokenizer against naive twins that look at the whole text at once."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.detokenizer import Detokenizer

SPECIAL_ID = 1000


class Pieces:
    """A tokenizer whose token i stands for the i-th piece of bytes."""

    special_token_ids = frozenset({SPECIAL_ID})

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return b"<special>" if token_id == SPECIAL_ID else self.pieces[token_id]


def first_stop(text: str, stop: tuple[str, ...]) -> str | None:
    """The stop string that is complete first, the longest among equals."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stop if s in text]
    return min(ends)[2] if ends else None


def whole_text(text: str, stop: tuple[str, ...], include_stop: bool) -> tuple[str, str | None]:
    found = first_stop(text, stop)
    if found is None:
        return text, None
    return text[: text.find(found) + (len(found) if include_stop else 0)], found


def may_become_stop(text: str, stop: tuple[str, ...]) -> int:
    """Length of the longest end of `text` with which a stop string begins."""
    return max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


def run(
    pieces: list[bytes], stop: tuple[str, ...] = (), include_stop: bool = False
) -> tuple[list[str], str | None]:
    detokenizer = Detokenizer(Pieces(pieces), stop=stop, include_stop=include_stop)
    found = None
    texts = []
    for token_id in range(len(pieces)):
        piece = detokenizer.push(token_id)
        texts.append(piece.text)
        found = found or piece.stop
    texts.append(detokenizer.flush())
    assert detokenizer.text == "".join(texts)
    return texts, found


@st.composite
def split_bytes(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    whole = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


EMOJI_TEXT = st.text(alphabet="ab é€щざि👩‍👧🇩🇪😀", max_size=30).map(lambda text: text.encode())
FEW_LETTERS = st.text(alphabet="abé😀", max_size=30).map(lambda text: text.encode())
STOPS = st.lists(st.text(alphabet="abé😀", min_size=1, max_size=5), max_size=4).map(tuple)


@given(split_bytes(st.binary(max_size=40) | EMOJI_TEXT))
def test_pieces_together_are_the_whole_text(pieces: list[bytes]) -> None:
    texts, found = run(pieces)
    assert "".join(texts) == b"".join(pieces).decode("utf-8", errors="replace")
    assert found is None


@given(split_bytes(FEW_LETTERS | st.binary(max_size=20)), STOPS, st.booleans())
def test_stops_are_found_wherever_the_tokens_are_cut(
    pieces: list[bytes], stop: tuple[str, ...], include_stop: bool
) -> None:
    texts, found = run(pieces, stop, include_stop)
    text = b"".join(pieces).decode("utf-8", errors="replace")
    assert ("".join(texts), found) == whole_text(text, stop, include_stop)


@given(split_bytes(FEW_LETTERS), STOPS)
def test_nothing_more_is_held_back_than_must_be(pieces: list[bytes], stop: tuple[str, ...]) -> None:
    detokenizer = Detokenizer(Pieces(pieces), stop=stop)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = ""
    for token_id, data in enumerate(pieces):
        text += decoder.decode(data)
        if detokenizer.push(token_id).stop is not None:
            return
        assert detokenizer.text == text[: len(text) - may_become_stop(text, stop)]


def letters(text: str, size: int = 1) -> list[bytes]:
    return [text[i : i + size].encode() for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("text", "stop", "kept", "found"),
    [
        ("abcdefgh", ("cdef",), "ab", "cdef"),
        ("abcdefgh", ("efgh",), "abcd", "efgh"),
        ("abcdefgh", ("hxyz",), "abcdefgh", None),
        ("abcdefgh", ("cd", "cdef"), "ab", "cd"),
        ("abcdefgh", ("cdef", "def"), "ab", "cdef"),
        ("abcdefgh", ("bcdefg", "de"), "abc", "de"),
        ("abcdefgh", ("gh", "bc"), "a", "bc"),
        ("aaab", ("aab",), "a", "aab"),
        ("abababac", ("ababac",), "ab", "ababac"),
        ("x" * 20, ("x" * 200,), "x" * 20, None),
    ],
)
def test_stop_strings(size: int, text: str, stop: tuple[str, ...], kept: str, found: str | None) -> None:
    texts, stopped_by = run(letters(text, size), stop)
    assert ("".join(texts), stopped_by) == (kept, found)


def test_the_first_part_of_a_stop_string_is_never_shown() -> None:
    texts, _ = run(letters("abcdefgh"), ("cdef",))
    assert texts == ["a", "b", "", "", "", "", "", "", ""]


def test_text_that_only_looked_like_a_stop_string_comes_as_soon_as_that_is_clear() -> None:
    texts, found = run(letters("abcdx"), ("bcde",))
    assert texts == ["a", "", "", "", "bcdx", ""]
    assert found is None


def test_a_possible_beginning_of_a_stop_string_is_given_out_at_the_end() -> None:
    texts, _ = run(letters("abc"), ("bcd",))
    assert texts == ["a", "", "", "bc"]


def test_an_unfinished_character_waits_and_shows_once_at_the_end() -> None:
    texts, _ = run([b"a\xf0", b"\x9f\x98", b"\x80b", b"\xf0\x9f"])
    assert texts == ["a", "", "😀b", "", "\ufffd"]


def test_bytes_that_are_no_character_do_not_wait() -> None:
    assert run([b"a\xff", b"b"])[0] == ["a\ufffd", "b", ""]


def test_special_tokens_are_shown_only_when_asked_for() -> None:
    pieces = Pieces([b"\xe2\x82", b"\xac"])
    hidden = Detokenizer(pieces)
    assert [hidden.push(i).text for i in (0, SPECIAL_ID, 1)] == ["", "", "€"]
    shown = Detokenizer(pieces, skip_special_tokens=False)
    assert shown.push(SPECIAL_ID).text == "<special>"


def test_an_unknown_id_is_an_error() -> None:
    with pytest.raises(IndexError):
        Detokenizer(Pieces([])).push(0)


def test_text_before_min_tokens_ends_nothing_and_begins_no_stop_string() -> None:
    detokenizer = Detokenizer(Pieces(letters("abab")), stop=("ab", "ba"))
    assert [detokenizer.push(i, check_stop=False).text for i in range(2)] == ["a", "b"]
    # "b" + "a" would be a stop string, but the "b" was given out unchecked.
    assert detokenizer.push(2).text == ""
    piece = detokenizer.push(3)
    assert (piece.text, piece.stop) == ("", "ab")
    assert detokenizer.text == "ab"


def test_unchecked_text_releases_what_was_held() -> None:
    detokenizer = Detokenizer(Pieces(letters("abc")), stop=("abc",))
    assert [detokenizer.push(0).text, detokenizer.push(1).text] == ["", ""]
    assert detokenizer.push(2, check_stop=False).text == "abc"


@pytest.mark.parametrize(("include_stop", "text"), [(False, "a"), (True, "abc")])
def test_text_after_the_stop_string_is_dropped(include_stop: bool, text: str) -> None:
    detokenizer = Detokenizer(Pieces([b"ab", b"cd", b"ef\xf0"]), stop=("bc",), include_stop=include_stop)
    pieces = [detokenizer.push(i) for i in range(3)]
    assert [piece.stop for piece in pieces] == [None, "bc", "bc"]
    assert detokenizer.flush() == ""
    assert detokenizer.text == text


def test_unchecked_text_forgets_the_beginning_of_a_stop_string() -> None:
    detokenizer = Detokenizer(Pieces(letters("axb")), stop=("ab",))
    pieces = [detokenizer.push(i, check_stop=i != 1) for i in range(3)]
    assert [piece.text for piece in pieces] == ["", "ax", "b"]
    assert pieces[2].stop is None
