"""Public serving traces: when requests came, and how long they were.

Azure LLM inference traces (CSV): TIMESTAMP, ContextTokens, GeneratedTokens.
Mooncake traces (JSON lines, gzip or plain): timestamp in ms, input_length, output_length, and hash_ids, one
for each 512 tokens of the prompt; equal ids mean equal tokens from the start of the prompt on.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

MOONCAKE_BLOCK_LEN = 512


class TraceError(ValueError):
    """A trace that cannot be read. The message names file and line."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    arrival: float
    """Seconds after the first request."""
    input_len: int
    output_len: int
    block_ids: tuple[int, ...] = ()
    """Of the prompt's blocks of MOONCAKE_BLOCK_LEN tokens; empty where the trace has none."""


def read_trace(path: Path, max_rows: int | None = None) -> list[TraceRow]:
    """The first rows of a trace, its kind known by the file's name (.csv, .jsonl, .jsonl.gz).

    Raises TraceError for another name or a line that is not of the format, OSError for a missing file.
    """
    name = path.name.removesuffix(".gz")
    if not name.endswith((".csv", ".jsonl")):
        raise TraceError(f"{path}: a trace is a .csv (Azure) or a .jsonl (Mooncake), perhaps with .gz")
    rows = _azure_rows if name.endswith(".csv") else _mooncake_rows
    read = list(islice(rows(path), max_rows))
    if not read:
        raise TraceError(f"{path}: the trace is empty")
    start = min(row.arrival for row in read)
    return [TraceRow(row.arrival - start, row.input_len, row.output_len, row.block_ids) for row in read]


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as raw:
        file = io.TextIOWrapper(raw, encoding="utf-8")
        yield from file


def _azure_rows(path: Path) -> Iterator[TraceRow]:
    for number, fields in enumerate(csv.DictReader(_lines(path)), 2):
        try:
            stamp = datetime.fromisoformat(fields["TIMESTAMP"].strip()[:26])
            lengths = int(fields["ContextTokens"]), int(fields["GeneratedTokens"])
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise TraceError(f"{path}:{number}: not a row of an Azure trace: {error}") from None
        yield TraceRow(stamp.timestamp(), *lengths)


def _mooncake_rows(path: Path) -> Iterator[TraceRow]:
    for number, line in enumerate(_lines(path), 1):
        try:
            row = json.loads(line)
            block_ids = tuple(int(block_id) for block_id in row["hash_ids"])
            times_and_lengths = row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"])
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path}:{number}: not a row of a Mooncake trace: {error}") from None
        yield TraceRow(*times_and_lengths, block_ids)
