"""A server process: signals, exit codes, and what its clients see meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from server.live_server import events_of, wait_until

TESTS = Path(__file__).parents[1]
Start = Callable[..., tuple["subprocess.Popen[str]", str]]


def launch(port: int, drain_seconds: float, pause: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "server.run_server", str(port), str(drain_seconds), str(pause)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server on a free port and gives the process and its address."""
    started: list[subprocess.Popen[str]] = []

    def run(*, drain_seconds: float = 10, pause: float = 0.0) -> tuple[subprocess.Popen[str], str]:
        process = launch(0, drain_seconds, pause)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ask(address: str, prompt: str = "hi") -> httpx.Response:
    return httpx.post(f"{address}/v1/completions", json={"prompt": prompt, "stream": True}, timeout=30)


@contextmanager
def streams(address: str, number: int) -> Iterator[list[httpx.Response]]:
    """Streams that have begun: their requests run."""
    body = {"prompt": "hi", "stream": True}
    with httpx.Client(timeout=30) as client, ExitStack() as stack:
        yield [
            stack.enter_context(client.stream("POST", f"{address}/v1/completions", json=body))
            for _ in range(number)
        ]


def is_draining(address: str) -> bool:
    return httpx.get(f"{address}/health").status_code == 503


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_at_idle(start: Start, number: signal.Signals) -> None:
    process, address = start()
    assert httpx.get(f"{address}/health").status_code == 200
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out.strip()) == (0, "closed"), err
    assert "Traceback" not in err
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        pass  # the port is free again


def test_running_streams_finish(start: Start) -> None:
    process, address = start(pause=0.1)
    with streams(address, 5) as running:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_draining(address))
        assert ask(address).status_code == 503
        for response in running:
            events = events_of(response.read().decode())
            assert "".join(event["choices"][0]["text"] for event in events) == "x" * 10
    assert process.wait(timeout=5) == 0


def test_streams_that_take_too_long_end_with_an_error(start: Start) -> None:
    process, address = start(pause=60.0, drain_seconds=0.1)
    with streams(address, 2) as running:
        process.send_signal(signal.SIGTERM)
        for response in running:
            assert events_of(response.read().decode())[-1]["error"]["type"] == "unavailable_error"
    assert process.wait(timeout=5) == 0


def test_second_signal_kills(start: Start) -> None:
    process, address = start(pause=60.0, drain_seconds=60)
    with streams(address, 1) as running:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_draining(address))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=5) == -signal.SIGTERM
        with pytest.raises(httpx.HTTPError):
            running[0].read()


def test_dead_engine_ends_the_process(start: Start) -> None:
    process, address = start()
    assert ask(address, "die").status_code == 200
    assert httpx.get(f"{address}/health").status_code == 503
    assert process.wait(timeout=10) == 1


def test_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = launch(port, 1, 0)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err == f"octavo: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert out.strip() == "closed"
