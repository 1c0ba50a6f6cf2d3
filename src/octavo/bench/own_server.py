"""A server of our own in a process of its own, for as long as it is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.bench.client import ClientError

_READY = "listening on "


@dataclass(frozen=True, slots=True)
class OwnServer:
    url: str
    """Without /v1."""
    process_id: int


@contextmanager
def own_server(model: str, flags: Sequence[str] = ()) -> Iterator[OwnServer]:
    """`octavo serve MODEL FLAGS` on a free port, for as long as the context is open.

    Raises ClientError where it does not come up; its errors are on stderr.
    """
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--log-level", "error", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield OwnServer(_wait_until_ready(process), process.pid)
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_READY):
            return line.removeprefix(_READY).strip().removesuffix("/v1")
    raise ClientError(f"the server ended with exit code {process.wait()}")
