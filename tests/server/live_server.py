"""A real server in a thread, for what only sockets show: streams, pauses, clients that leave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from octavo.server.app import create_app
from server.fake_engine import FakeEngine, strict_json


@contextmanager
def live_server(engine: FakeEngine, **options: object) -> Iterator[str]:
    """The address, such as http://127.0.0.1:12345, while the server runs."""
    app = create_app(engine, **options)  # type: ignore[arg-type]
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def wait_until(is_so: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return once it is so; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def events_of(body: str) -> list[Any]:
    """The values of a stream's events, without the last, which must be [DONE]."""
    lines = [line for line in body.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines), body
    assert lines[-1] == "data: [DONE]"
    return [strict_json(line.removeprefix("data: ")) for line in lines[:-1]]
