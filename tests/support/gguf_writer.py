"""Writes small GGUF files: whole models for tests, and broken ones to be refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from octavo.formats.gguf_writer import padding, preamble, tensor_entry
from octavo.kernels.weights import Weight


def gguf_bytes(metadata: Mapping[str, object], weights: Iterable[Weight] = (), *, version: int = 3) -> bytes:
    """A file's bytes. A weight of one row is written as a vector; tensor data follows the order given.

    Metadata: see octavo.formats.gguf_writer.preamble.
    """
    weights = list(weights)
    table, data = b"", b""
    for weight in weights:
        dims = [weight.cols] if weight.rows == 1 else [weight.cols, weight.rows]
        table += tensor_entry(weight.name, dims, weight.type.value, len(data))
        data += padded(weight.data.tobytes())
    return padded(preamble(metadata, len(weights), version=version) + table) + data


def write_gguf(path: Path, metadata: Mapping[str, object], weights: Iterable[Weight] = ()) -> Path:
    path.write_bytes(gguf_bytes(metadata, weights))
    return path


def padded(raw: bytes) -> bytes:
    return raw + padding(len(raw))
