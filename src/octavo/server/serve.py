"""Running the application: a socket, uvicorn, and a shutdown that lets answers finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from octavo.server.app import create_app
from octavo.server.context import ServerContext
from octavo.server.engine_protocol import Engine

logger = logging.getLogger("octavo")

DRAIN_SECONDS = 30.0
FLUSH_SECONDS = 2
"""For connections to send what they hold, once the engine has nothing left to do."""
HEALTH_CHECK_SECONDS = 0.5
DEAD_GRACE_SECONDS = 1.0
"""For requests to be told, before a server whose engine has died exits."""


def serve(
    engine: Engine,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    api_key: str | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve until a signal, and return the exit code. Closes the engine.

    The first SIGTERM or SIGINT fails /health, refuses new requests, gives the running ones `drain_seconds`,
    and leads to 0; a second signal kills at once. A port that is taken, or an engine that dies, leads to 1.
    on_ready: called with the address once the socket listens.
    """
    try:
        listener = _listen(host, port)
    except OSError as error:
        print(f"octavo: cannot listen on {host}:{port}: {error.strerror or error}", file=sys.stderr)
        engine.close()
        return 1
    with contextlib.closing(listener):
        app = create_app(engine, api_key=api_key)
        try:
            return asyncio.run(_Run(app, engine, drain_seconds).until_stopped(listener, on_ready))
        finally:
            engine.close()


class _Run:
    """One life of the server, from the first connection to the exit code."""

    def __init__(self, app: Starlette, engine: Engine, drain_seconds: float) -> None:
        self._engine = engine
        self._context: ServerContext = app.state.context
        self._drain_seconds = drain_seconds
        self._stopping = asyncio.Event()
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,  # the application logs; uvicorn's own warnings go to its logger
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=FLUSH_SECONDS,
                server_header=False,
            )
        )

    async def until_stopped(self, listener: socket.socket, on_ready: Callable[[str], None] | None) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        watching = asyncio.create_task(self._wait_until_dead())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            if on_ready is not None:
                on_ready(_address(listener))
            await asyncio.wait((serving, watching, stopping), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                logger.critical("the engine has died; the server exits")
                await asyncio.sleep(DEAD_GRACE_SECONDS)
                return 1
            return await self._drain()
        finally:
            self._server.should_exit = True
            await serving
            watching.cancel()
            stopping.cancel()

    async def _drain(self) -> int:
        """The socket stays open meanwhile, so that whoever asks is told that the server is leaving."""
        logger.info("shutting down: running requests get %g s", self._drain_seconds)
        self._context.is_draining = True
        if not await self._engine.drain(self._drain_seconds):
            logger.warning("shutting down: aborted requests that were still running")
        return 0

    async def _wait_until_dead(self) -> None:
        while self._engine.is_healthy or self._context.is_draining:
            await asyncio.sleep(HEALTH_CHECK_SECONDS)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._stopping.set()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process by the signal, not by an exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError, also for a name that does not resolve."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
