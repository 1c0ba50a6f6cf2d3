"""The toy's tokenizer, as GGUF metadata: byte-level BPE with a handful of merges.

Ids: 0 to 255 are the bytes themselves, then one token for each merge, then the control tokens, then fillers.
"""

from __future__ import annotations

import numpy as np

MERGES = (
    ("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "n"), ("an", "d"), ("Ġ", "and"), ("i", "n"), ("in", "g"),
    ("e", "r"), ("o", "n"), ("Ġ", "a"), ("l", "l"), ("h", "e"), ("he", "ll"), ("hell", "o"), ("o", "r"),
)  # fmt: skip
ENDOFTEXT_ID = 256 + len(MERGES)
IM_START_ID = ENDOFTEXT_ID + 1
IM_END_ID = ENDOFTEXT_ID + 2
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MIN_VOCAB_SIZE = IM_END_ID + 1

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_NORMAL, _CONTROL = 1, 3


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE, in order of the bytes.

    Printable Latin-1 characters stand for themselves; the others, in order, for characters from 256 on.
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in itself else chr(next(shifted)) for byte in range(256)]


def tokenizer_metadata(vocab_size: int) -> dict[str, object]:
    """Everything under `tokenizer.`, for a vocabulary of at least MIN_VOCAB_SIZE."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be at least {MIN_VOCAB_SIZE}, got {vocab_size}")
    tokens = [*byte_alphabet(), *(left + right for left, right in MERGES), *CONTROL_TOKENS]
    tokens += [f"Ġw{token_id}" for token_id in range(MIN_VOCAB_SIZE, vocab_size)]
    types = np.full(vocab_size, _NORMAL, np.int32)
    types[ENDOFTEXT_ID : IM_END_ID + 1] = _CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in MERGES],
        "tokenizer.ggml.bos_token_id": ENDOFTEXT_ID,
        "tokenizer.ggml.eos_token_id": ENDOFTEXT_ID,
        "tokenizer.ggml.eot_token_id": IM_END_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
