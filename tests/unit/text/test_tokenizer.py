"""The tokenizer on a toy vocabulary: bytes, a few merges, three control tokens."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.splitting import SPLITTING_RULES
from octavo.text.tokenizer import Tokenizer, TokenizerError
from support.toy_tokenizer import ENDOFTEXT_ID, IM_END_ID, IM_START_ID, tokenizer_metadata

VOCAB_SIZE = 300
USER_DEFINED_ID = 298


def toy(**changes: object) -> Tokenizer:
    metadata = {**tokenizer_metadata(VOCAB_SIZE), **{f"tokenizer.ggml.{k}": v for k, v in changes.items()}}
    return Tokenizer.from_gguf({key: value for key, value in metadata.items() if value is not None})


TOY = toy()


def test_merges_are_applied_in_their_order() -> None:
    assert [TOY.token_text(i) for i in TOY.encode("the hello and the")] == [
        "the",
        " ",
        "hello",
        " and",
        " the",
    ]


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert TOY.decode(TOY.encode(text)) == text


@given(st.text(alphabet="<|im_end>start endoftext\n"))
def test_ordinary_text_never_gives_a_control_token(text: str) -> None:
    assert not TOY.special_token_ids.intersection(TOY.encode(text))


def test_control_tokens_are_found_only_when_asked_for() -> None:
    text = "a<|im_end|><|im_start|>b"
    assert TOY.encode(text, parse_special=True) == [97, IM_END_ID, IM_START_ID, 98]
    plain = TOY.encode(text)
    assert len(plain) > 4
    assert TOY.decode(plain) == text


def test_the_longest_control_token_wins() -> None:
    tokens = list(tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.tokens"])
    tokens[IM_START_ID] = "<|im_end|>>"
    tokenizer = toy(tokens=tokens)
    assert tokenizer.encode("<|im_end|>>>", parse_special=True) == [IM_START_ID, ord(">")]


def test_user_defined_tokens_are_found_in_any_text_and_are_not_special() -> None:
    tokens = list(tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.tokens"])
    types = np.array(tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.token_type"])
    tokens[USER_DEFINED_ID], types[USER_DEFINED_ID] = "<é think>", 4
    tokenizer = toy(tokens=tokens, token_type=types)
    assert tokenizer.encode("a<é think>b") == [97, USER_DEFINED_ID, 98]
    assert tokenizer.decode([97, USER_DEFINED_ID]) == "a<é think>"
    assert USER_DEFINED_ID not in tokenizer.special_token_ids


def test_bos_comes_first_once_where_the_vocabulary_asks_for_it() -> None:
    tokenizer = toy(add_bos_token=True, bos_token_id=IM_START_ID)
    assert tokenizer.encode("a") == [IM_START_ID, 97]
    assert tokenizer.encode("") == [IM_START_ID]
    assert tokenizer.encode("a", add_special=False) == [97]
    assert tokenizer.encode("<|im_start|>a", parse_special=True) == [IM_START_ID, 97]
    assert TOY.encode("a") == [97]


def test_bos_follows_the_splitting_rule_where_the_file_is_silent() -> None:
    assert toy(add_bos_token=None, pre="llama-bpe").encode("a") == [ENDOFTEXT_ID, 97]
    assert toy(add_bos_token=None, pre="gpt-2").encode("a") == [97]
    assert toy(add_bos_token=None, bos_token_id=None, pre="llama-bpe").encode("a") == [97]


def test_end_tokens_are_those_named_and_those_known_by_their_text() -> None:
    assert TOY.eos_token_ids == {ENDOFTEXT_ID, IM_END_ID}
    assert toy(eos_token_id=97, eot_token_id=None, eom_token_id=98).eos_token_ids == {
        97, 98, ENDOFTEXT_ID, IM_END_ID,
    }  # fmt: skip
    assert (TOY.eos_token_id, TOY.eos_token, TOY.bos_token) == (
        ENDOFTEXT_ID,
        "<|endoftext|>",
        "<|endoftext|>",
    )
    assert (toy(bos_token_id=None).bos_token_id, toy(bos_token_id=None).bos_token) == (None, "")


def test_an_end_token_is_a_control_token_whatever_the_file_calls_it() -> None:
    tokenizer = toy(token_type=[4 if i == IM_END_ID else 1 for i in range(VOCAB_SIZE)])
    assert IM_END_ID in tokenizer.special_token_ids
    assert IM_END_ID not in tokenizer.encode("<|im_end|>")


def test_end_of_message_ends_nothing_in_a_vocabulary_with_channels() -> None:
    tokens = list(tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.tokens"])
    tokens[298] = "<|end|>"
    assert 298 in toy(tokens=tokens).eos_token_ids
    tokens[299] = "<|return|>"
    assert 298 not in toy(tokens=tokens).eos_token_ids


def test_decode_leaves_special_tokens_out_unless_told_otherwise() -> None:
    ids = [97, IM_END_ID, 98]
    assert TOY.decode(ids) == "ab"
    assert TOY.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_broken_characters_show_as_replacement_characters() -> None:
    euro = TOY.encode("€")
    assert [TOY.token_bytes(i) for i in euro] == [b"\xe2", b"\x82", b"\xac"]
    assert TOY.token_text(euro[0]) == "\ufffd"
    assert TOY.decode(euro[:2]) == "\ufffd"
    assert TOY.decode(euro) == "€"


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**40])
def test_an_id_outside_the_vocabulary_is_named(token_id: int) -> None:
    for use in (TOY.token_bytes, TOY.token_text, lambda i: TOY.decode([97, i])):
        with pytest.raises(ValueError, match=str(token_id)):
            use(token_id)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(TokenizerError, match="surrogate"):
        TOY.encode("a\ud800")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, r"tokenizer.ggml.model is 'llama'"),
        ({"model": None}, r"tokenizer.ggml.model is None"),
        ({"pre": "made-up"}, r"tokenizer.ggml.pre is 'made-up'"),
        ({"pre": None}, r"tokenizer.ggml.pre is None"),
        ({"tokens": None}, r"tokenizer.ggml.tokens is missing"),
        ({"tokens": "abc"}, r"tokenizer.ggml.tokens is not an array"),
        ({"tokens": [1, 2]}, r"tokenizer.ggml.tokens is not an array of strings"),
        ({"tokens": ["a"] * VOCAB_SIZE}, r"tokenizer.ggml.tokens holds a token twice"),
        ({"token_type": [1]}, r"tokenizer.ggml.token_type has 1 entries for 300 tokens"),
        ({"merges": ["t h", "nothere a"]}, r"tokenizer.ggml.merges does not fit"),
        ({"merges": ["th"]}, r"tokenizer.ggml.merges does not fit"),
        ({"eos_token_id": VOCAB_SIZE}, r"tokenizer.ggml.eos_token_id is 300"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_by_name(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        toy(**changes)


def test_numpy_arrays_are_taken_like_lists() -> None:
    tokens = tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.tokens"]
    assert toy(tokens=np.array(tokens, dtype=object)).encode("the hello") == TOY.encode("the hello")


def test_threads_share_a_tokenizer() -> None:
    text = "the hello and the " * 200
    expected = TOY.encode(text)
    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(TOY.encode(text))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def words(pre: str, text: str) -> list[str]:
    """The pieces that the rule cuts `text` into."""
    tokens = list(tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.tokens"])
    pieces = toy(pre=pre, tokens=tokens, merges=[])._encoder.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in pieces]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'm 1234 x!!  y", ["I", "'m", " 1234", " x", "!!", " ", " y"]),
        ("smollm", "I'm 1234 x!!  y", ["I", "'m", " ", "1", "2", "3", "4", " x", "!!", " ", " y"]),
        ("smollm", "a\n\n  b½٣", ["a", "\n\n ", " b", "½", "٣"]),
        ("llama-bpe", "I'M 1234 (x)!\n\n y", ["I", "'M", " ", "123", "4", " (", "x", ")!\n\n", " y"]),
        ("qwen2", "I'M 12 (x)!\n\n y", ["I", "'M", " ", "1", "2", " (", "x", ")!\n\n", " y"]),
        ("tekken", "camelCase's 12a/b/", ["camel", "Case", "'s", " ", "1", "2", "a", "/b", "/"]),
        ("gpt-4o", "a!\n/\nb", ["a", "!\n/\n", "b"]),
        ("gpt-4o", "camelCase's 1234/\n", ["camel", "Case's", " ", "123", "4", "/\n"]),
    ],
)
def test_splitting_rules(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


@pytest.mark.parametrize("pre", sorted(SPLITTING_RULES))
def test_no_rule_loses_text(pre: str) -> None:
    text = " Don't\t\tSTOP  ½ 12345 <|x|>\r\n\r\n  é́ 漢字 👩‍👩‍👧 café"
    assert "".join(words(pre, text)) == text


def test_composed_form_for_the_rules_that_ask_for_it() -> None:
    assert toy(pre="qwen2").encode("e\u0301") == TOY.encode("é")
    assert TOY.encode("e\u0301") != TOY.encode("é")


def test_a_whole_word_skips_the_merges_where_the_rule_says_so() -> None:
    tokens = list(tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.tokens"])
    tokens[299] = "xyz"  # no merge leads to it
    assert toy(pre="llama-bpe", tokens=tokens, add_bos_token=False).encode("xyz") == [299]
    assert toy(pre="gpt-2", tokens=tokens).encode("xyz") == [120, 121, 122]


def test_a_whole_word_is_never_a_control_token() -> None:
    tokens = list(tokenizer_metadata(VOCAB_SIZE)["tokenizer.ggml.tokens"])
    tokens[299] = "xyz"
    types = [3 if i == 299 else 1 for i in range(VOCAB_SIZE)]
    tokenizer = toy(pre="llama-bpe", tokens=tokens, token_type=types, add_bos_token=False)
    assert tokenizer.encode("xyz") == [120, 121, 122]
    assert tokenizer.encode("xyz", parse_special=True) == [299]
