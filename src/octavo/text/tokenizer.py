"""Text to token ids and back, built from the metadata of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as ByteLevelEncoder

from octavo.text.splitting import SPLITTING_RULES, SplittingRule

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Values of `tokenizer.ggml.token_type`; the other values are treated like unused tokens."""

END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
)
"""Tokens that end a turn or a text wherever they exist: files often name only one of theirs."""


class TokenizerError(ValueError):
    """A vocabulary that cannot be used, or text that cannot be encoded."""


@dataclass(frozen=True, slots=True)
class NamedTokens:
    """The tokens that a vocabulary gives a part to play."""

    bos: int | None
    eos: int | None
    ends: frozenset[int]
    """All tokens that end an answer."""
    adds_bos: bool
    """Whether a prompt starts with BOS."""


class Tokenizer:
    """Byte-level BPE. Immutable after construction, so any number of threads may use it.

    Control tokens can never come out of ordinary text: the encoder below knows them under names that hold a
    space, which the byte alphabet does not have. `encode(parse_special=True)` looks for them itself.
    """

    def __init__(
        self, texts: list[str], types: list[int], encoder: ByteLevelEncoder, named: NamedTokens
    ) -> None:
        """`texts` and `types` hold one entry a token id. `from_gguf` is the usual way here."""
        self._texts = texts
        self._encoder = encoder
        self._named = named
        self._bytes = [_token_bytes(text, kind) for text, kind in zip(texts, types, strict=True)]
        self._special_token_ids = frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN))
        self._special = _Finder({texts[i]: i for i in sorted(self._special_token_ids)})
        self._user_defined = _Finder({texts[i]: i for i, kind in enumerate(types) if kind == USER_DEFINED})

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build from `tokenizer.ggml.*`. Arrays may be lists or numpy arrays.

        Raises TokenizerError, naming the key, for a kind of vocabulary or a splitting rule that is not known,
        and for metadata that is missing or contradicts itself.
        """
        rule = _splitting_rule(metadata)
        texts = _strings(metadata, "tokens")
        end_tokens = _end_tokens(texts)
        types = _token_types(metadata, len(texts))
        for token_id in end_tokens:
            types[token_id] = CONTROL  # some files call them ordinary, and a user could then end a turn
        encoder = _byte_level_encoder(texts, types, _strings(metadata, "merges"), rule)
        bos, *ends = (_token_id(metadata, name, len(texts)) for name in ("bos", "eos", "eot", "eom"))
        adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", rule.adds_bos)) and bos is not None
        all_ends = frozenset(end_tokens.union(end for end in ends if end is not None))
        return cls(texts, types, encoder, NamedTokens(bos, ends[0], all_ends, adds_bos))

    @property
    def vocab_size(self) -> int:
        return len(self._texts)

    @property
    def bos_token_id(self) -> int | None:
        return self._named.bos

    @property
    def eos_token_id(self) -> int | None:
        return self._named.eos

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """All tokens that end an answer."""
        return self._named.ends

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens with a meaning of their own, which ordinary text never encodes to."""
        return self._special_token_ids

    @property
    def bos_token(self) -> str:
        """Text of the begin-of-sequence token, "" where there is none."""
        return "" if self._named.bos is None else self._texts[self._named.bos]

    @property
    def eos_token(self) -> str:
        """Text of the end-of-sequence token, "" where there is none."""
        return "" if self._named.eos is None else self._texts[self._named.eos]

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The token ids of `text`.

        add_special puts BOS in front if the vocabulary asks for it, unless it is there already. parse_special
        reads the texts of control tokens as those tokens; otherwise they are text like any other.
        Raises TokenizerError for text that is not valid Unicode.
        """
        ids = self.encode_pieces(self.split_special(text) if parse_special else [text])
        bos = self._named.bos
        if add_special and self._named.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def split_special(self, text: str) -> list[str | int]:
        """Cut at the texts of control tokens: plain text, and the ids of control tokens, in order."""
        return self._special.split(text)

    def special_id(self, text: str) -> int | None:
        """The control token that is written `text`."""
        return self._special.ids.get(text)

    @property
    def special_texts(self) -> Iterable[str]:
        """How control tokens are written."""
        return self._special.ids.keys()

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. Raises ValueError for an unknown id."""
        hidden = self._special_token_ids if skip_special_tokens else frozenset()
        pieces = [self.token_bytes(i) for i in ids if i not in hidden]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token stands for, possibly a part of a character."""
        if not 0 <= token_id < len(self._bytes):
            raise ValueError(f"token id {token_id} is outside the vocabulary of {len(self._bytes)} tokens")
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """The text of one token; U+FFFD for bytes that are no UTF-8 alone."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def encode_pieces(self, pieces: Iterable[str | int]) -> list[int]:
        """The ids of what split_special gives; in the plain texts nothing is special."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                continue
            for part in self._user_defined.split(piece):
                ids.extend([part] if isinstance(part, int) else self._encode_text(part))
        return ids

    def _encode_text(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):
            raise TokenizerError("the text is not valid Unicode: it holds a lone surrogate") from None
        return ids


class _Finder:
    """Finds the texts of some tokens in a text; the longest one where several begin."""

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = {text: token_id for text, token_id in ids.items() if text}
        longest_first = sorted(self.ids, key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if self.ids else None

    def split(self, text: str) -> list[str | int]:
        if self._pattern is None:
            return [text] if text else []
        pieces: list[str | int] = []
        end = 0
        for match in self._pattern.finditer(text):
            if match.start() > end:
                pieces.append(text[end : match.start()])
            pieces.append(self.ids[match.group()])
            end = match.end()
        if end < len(text):
            pieces.append(text[end:])
        return pieces


def byte_alphabet() -> dict[int, str]:
    """GPT-2's way to write bytes as printable characters: those that print stand for themselves, the others
    for the characters from U+0100 on. Radford et al., Language Models are Unsupervised Multitask Learners.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{b: chr(0x100 + i) for i, b in enumerate(others)}}


_TO_LATIN1 = {ord(char): byte for byte, char in byte_alphabet().items()}


def _token_bytes(text: str, kind: int) -> bytes:
    """Only normal tokens are written in the byte alphabet; the others are plain text."""
    if kind == NORMAL:
        try:
            return text.translate(_TO_LATIN1).encode("latin-1")
        except UnicodeEncodeError:
            pass
    return text.encode("utf-8")


def _byte_level_encoder(
    texts: list[str], types: list[int], merges: list[str], rule: SplittingRule
) -> ByteLevelEncoder:
    vocabulary = {
        text if kind == NORMAL else f" {token_id}": token_id
        for token_id, (text, kind) in enumerate(zip(texts, types, strict=True))
    }
    if len(vocabulary) != len(texts):
        raise TokenizerError("tokenizer.ggml.tokens holds a token twice")
    # An entry that is not two tokens gives an empty one, and no vocabulary has that.
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        bpe = models.BPE(vocabulary, pairs, ignore_merges=rule.ignore_merges)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"tokenizer.ggml.merges does not fit the tokens: {error}") from None
    encoder = ByteLevelEncoder(bpe)
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if rule.normalizes_nfc:
        encoder.normalizer = normalizers.NFC()
    return encoder


def _splitting_rule(metadata: Mapping[str, object]) -> SplittingRule:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise TokenizerError(f"tokenizer.ggml.model is {model!r}; known: 'gpt2' (byte-level BPE)")
    name = metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in SPLITTING_RULES:
        known = ", ".join(SPLITTING_RULES)
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}, a splitting rule that is not known; known: {known}"
        )
    return SPLITTING_RULES[name]


def _array(metadata: Mapping[str, object], name: str) -> list[Any]:
    value: Any = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        raise TokenizerError(f"tokenizer.ggml.{name} is missing")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise TokenizerError(f"tokenizer.ggml.{name} is not an array")
    return list(value)


def _strings(metadata: Mapping[str, object], name: str) -> list[str]:
    values = _array(metadata, name)
    if not all(isinstance(value, str) for value in values):
        raise TokenizerError(f"tokenizer.ggml.{name} is not an array of strings")
    return values


def _token_types(metadata: Mapping[str, object], num_tokens: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in metadata:
        return [NORMAL] * num_tokens
    types = _array(metadata, "token_type")
    if len(types) != num_tokens:
        raise TokenizerError(f"tokenizer.ggml.token_type has {len(types)} entries for {num_tokens} tokens")
    return types


def _token_id(metadata: Mapping[str, object], name: str, num_tokens: int) -> int | None:
    value: Any = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if not 0 <= int(value) < num_tokens:
        raise TokenizerError(f"tokenizer.ggml.{name}_token_id is {value}, outside {num_tokens} tokens")
    return int(value)


def _end_tokens(texts: list[str]) -> set[int]:
    found = {text: token_id for token_id, text in enumerate(texts) if text in END_TOKENS}
    if "<|return|>" in texts:
        # In that dialect <|end|> closes a message and the answer goes on.
        found.pop("<|end|>", None)
    return set(found.values())
