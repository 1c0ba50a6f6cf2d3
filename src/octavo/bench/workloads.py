"""What a load asks of a server: sessions of one or more turns, and when each begins.

Everything is a pure function of its arguments, the seed among them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from octavo.bench.prompts import words
from octavo.bench.traces import MOONCAKE_BLOCK_LEN, TraceRow


@dataclass(frozen=True, slots=True)
class Turn:
    prompt: str
    output_len: int
    """Tokens to ask for; the end-of-sequence token is ignored."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns of one client, each asked when the one before is answered."""

    turns: tuple[Turn, ...]
    arrival: float = 0.0
    """Seconds after the start of the run."""
    is_chat: bool = False
    """The turns are one conversation: each carries the messages before it."""


def random_prompts(
    num_prompts: int, input_len: int, output_len: int, *, shared_prefix_len: int = 0, seed: int = 0
) -> list[Session]:
    """Prompts of input_len words of their own, after one prefix that all of them share."""
    prefix = words((seed, "prefix"), shared_prefix_len)
    return [
        Session((Turn(f"{prefix} {words((seed, index), input_len)}".strip(), output_len),))
        for index in range(num_prompts)
    ]


def chats(
    num_chats: int, num_turns: int, input_len: int, output_len: int, *, system_len: int = 0, seed: int = 0
) -> list[Session]:
    """Conversations of num_turns messages of input_len words. All begin with the same system_len words."""
    common = words((seed, "prefix"), system_len)
    return [
        Session(
            tuple(
                Turn(
                    f"{common if turn == 0 else ''} {words((seed, chat, turn), input_len)}".strip(),
                    output_len,
                )
                for turn in range(num_turns)
            ),
            is_chat=True,
        )
        for chat in range(num_chats)
    ]


def from_trace(
    rows: Iterable[TraceRow], *, time_scale: float = 1.0, length_scale: float = 1.0, seed: int = 0
) -> list[Session]:
    """Sessions that arrive and are as long as a trace says.

    time_scale: arrivals are multiplied by it; 0.5 is twice the load. length_scale: so are lengths (at least
    1). Rows that share leading blocks get prompts that share leading words, in the same proportion.
    """
    return [
        Session(
            (
                Turn(
                    _trace_prompt(row, index, length_scale, seed),
                    _scaled(row.output_len, length_scale),
                ),
            ),
            row.arrival * time_scale,
        )
        for index, row in enumerate(rows)
    ]


def with_poisson_arrivals(sessions: Sequence[Session], request_rate: float, seed: int = 0) -> list[Session]:
    """The sessions, arriving at random: exponential times between them, 1 / request_rate s on average."""
    if request_rate <= 0:
        raise ValueError(f"request_rate must be above 0, got {request_rate}")
    source, at, arriving = random.Random(seed), 0.0, []
    for session in sessions:
        arriving.append(replace(session, arrival=at))
        at += source.expovariate(request_rate)
    return arriving


def _scaled(length: int, scale: float) -> int:
    return max(1, round(length * scale))


def _trace_prompt(row: TraceRow, index: int, length_scale: float, seed: int) -> str:
    """Whole blocks are the same words wherever their id stands; what remains is the request's own."""
    total, block_len = _scaled(row.input_len, length_scale), _scaled(MOONCAKE_BLOCK_LEN, length_scale)
    block_ids = row.block_ids[: total // block_len]
    blocks = [words((seed, "block", block_id), block_len) for block_id in block_ids]
    rest = total - len(blocks) * block_len
    return " ".join([*blocks, words((seed, "own", index), rest)] if rest else blocks)
