"""A server of our own in a process of its own, for as long as it is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from octavo.bench.client import ClientError

_READY = "listening on "


@contextmanager
def own_server(model: str, flags: Sequence[str] = ()) -> Iterator[str]:
    """`octavo serve MODEL FLAGS` on a free port. Yields its base URL; stops it in the end.

    Raises ClientError where it does not come up; its errors are on stderr.
    """
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", "--log-level", "error", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_until_ready(process)
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
