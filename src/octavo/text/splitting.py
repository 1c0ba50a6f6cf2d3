"""How byte-level BPE vocabularies cut text into words before merging.

The rule is part of the model: another cut gives other tokens. GGUF files name it in `tokenizer.ggml.pre`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """Each pattern in turn cuts the pieces that it gets into its matches and the text between them."""

    patterns: tuple[str, ...]
    """Regular expressions in Oniguruma's dialect, as tokenizer.json files write them."""
    ignore_merges: bool = False
    """A word that is a token becomes that token, whether or not the merges lead there."""
    adds_bos: bool = False
    """Prompts start with BOS where the file says nothing about it."""
    normalizes_nfc: bool = False
    """Text is brought to Unicode's composed form first."""


_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _case_words(suffix: str) -> str:
    """Words that end where capitals begin again, as in camelCase."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_UPPER}*{_LOWER}+{suffix}|{start}{_UPPER}+{_LOWER}*{suffix}"


def _letters_digits_rest(digits: str) -> str:
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{_CONTRACTIONS}|{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT2 = SplittingRule((_GPT2_WORDS,))
_SINGLE_DIGITS = SplittingRule((r"\p{N}", _GPT2_WORDS))
_LLAMA3 = SplittingRule((_letters_digits_rest(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True)
_QWEN2 = SplittingRule((_letters_digits_rest(r"\p{N}"),), normalizes_nfc=True)
_TEKKEN = SplittingRule(
    (rf"{_case_words('')}|\p{{N}}|{_SYMBOLS}|{_SPACES}",), ignore_merges=True, adds_bos=True
)
_GPT4O = SplittingRule((rf"{_case_words(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}",))

SPLITTING_RULES: dict[str, SplittingRule] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
}
"""By the names that GGUF files use. A name is listed when its rule is known; the others are refused."""
