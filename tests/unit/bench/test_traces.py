"""Traces: both formats, plain and gzipped, and what is no trace."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from octavo.bench.traces import TraceError, TraceRow, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 7]}
{"timestamp": 6500, "input_length": 600, "output_length": 9, "hash_ids": [0, 8]}
"""


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    first, second = read_trace(path)
    assert first == TraceRow(0.0, 374, 44)
    assert (second.input_len, second.output_len) == (396, 109)
    assert second.arrival == pytest.approx(4.314579)


def test_mooncake_plain_and_gzipped(tmp_path: Path) -> None:
    plain, packed = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    plain.write_text(MOONCAKE)
    packed.write_bytes(gzip.compress(MOONCAKE.encode()))
    expected = [TraceRow(0.0, 1000, 5, (0, 7)), TraceRow(3.5, 600, 9, (0, 8))]
    assert read_trace(plain) == read_trace(packed) == expected
    assert read_trace(packed, max_rows=1) == expected[:1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "a trace is a .csv"),
        ("a.csv", "", "the trace is empty"),
        ("a.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n", "a.csv:2: not a row"),
        ("a.csv", AZURE + "yesterday,1,2\n", "a.csv:4: not a row"),
        ("a.jsonl", MOONCAKE + "{}\n", "a.jsonl:3: not a row"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: not a row"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)
