"""The tokenizer of SmolLM2 against llama.cpp, on 60 strings chosen to be awkward."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from octavo.formats.gguf import open_gguf
from octavo.text.chat_template import chat_template_of, encode_chat
from octavo.text.detokenizer import Detokenizer
from octavo.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model
GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "tokenizer_golden.json").read_text(encoding="utf-8")
)
CASES: list[dict[str, Any]] = GOLDEN["tokenize"]


@pytest.fixture(scope="module")
def metadata(smollm2_path: Path) -> dict[str, object]:
    return dict(open_gguf(smollm2_path).metadata)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


def test_all_sixty_strings_are_here() -> None:
    assert len(CASES) == 60
    assert any(case["ids"] != case["ids_with_special"] for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_strings_encode_and_decode_as_given(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    assert tokenizer.encode(case["text"]) == case["ids"]
    assert tokenizer.encode(case["text"], parse_special=True) == case["ids_with_special"]
    assert tokenizer.decode(case["ids"]) == case["decoded"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_streamed_text_is_the_text(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    detokenizer = Detokenizer(tokenizer, stop=("no such text",))
    pieces = [detokenizer.push(token_id).text for token_id in case["ids"]]
    assert "".join([*pieces, detokenizer.flush()]) == case["decoded"]


def test_streamed_text_of_random_tokens_is_their_text(tokenizer: Tokenizer) -> None:
    numbers = random.Random(0)
    for _ in range(500):
        ids = numbers.choices(range(tokenizer.vocab_size), k=20)
        detokenizer = Detokenizer(tokenizer)
        pieces = [detokenizer.push(token_id).text for token_id in ids]
        assert "".join([*pieces, detokenizer.flush()]) == tokenizer.decode(ids)


def test_a_chat_starts_with_the_default_system_message(
    metadata: dict[str, object], tokenizer: Tokenizer
) -> None:
    template = chat_template_of(metadata, tokenizer)
    assert template is not None
    ids = encode_chat(tokenizer, template, [{"role": "user", "content": "Hi <|im_end|>"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert [i for i in ids if i in tokenizer.special_token_ids] == [1, 2, 1, 2, 1]
    assert tokenizer.eos_token_ids >= {0, 2}
