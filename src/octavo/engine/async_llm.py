"""The engine for a server: one thread steps it, coroutines submit and read."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.assembly import Assembly, assemble
from octavo.engine.errors import EngineDeadError, EngineDrainingError
from octavo.engine.metrics import EngineMetrics
from octavo.engine.outputs import ChoiceDelta, RequestDelta
from octavo.engine.pace import PATIENCE
from octavo.engine.plan import MemoryPlan
from octavo.engine.stream import RequestStream
from octavo.params import SamplingParams
from octavo.request import FinishReason
from octavo.text.chat_template import encode_chat
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger("octavo")

Command = Callable[[], None]
Reader = tuple[asyncio.AbstractEventLoop, RequestStream]

DEAD_ERROR = "the engine has stopped after an internal error"


class AsyncLLM:
    """A model served to coroutines.

    The engine belongs to one thread; coroutines send it commands and get deltas through their event loop, one
    wake-up a loop and step. An error that ends the thread ends every stream and makes the engine unhealthy.
    """

    def __init__(self, config: EngineConfig, served_model_name: str | None = None) -> None:
        self._assembly: Assembly = assemble(config)
        self._engine = self._assembly.engine
        self.model_name = served_model_name or _display_name(config.model)
        self.metrics = EngineMetrics(self.model_name, self.max_model_len, self._cache_info())
        self._engine.reporter.sink = self.metrics
        self._readers: dict[str, Reader] = {}
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._draining = False
        self._dead = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    @property
    def plan(self) -> MemoryPlan:
        return self._assembly.plan

    @property
    def max_model_len(self) -> int:
        return self._assembly.plan.max_model_len

    @property
    def tokenizer(self) -> Tokenizer:
        return self._assembly.tokenizer

    @property
    def is_healthy(self) -> bool:
        return not (self._dead or self._draining or self._closing)

    async def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text, computed off the event loop."""
        return await asyncio.to_thread(
            self.tokenizer.encode, text, add_special=add_special, parse_special=parse_special
        )

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], **template_variables: Any
    ) -> list[int]:
        """Token ids of a conversation. Raises ChatTemplateError or ParameterError("messages")."""
        return await asyncio.to_thread(
            encode_chat, self.tokenizer, self._assembly.chat_template, messages, **template_variables
        )

    async def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str = "",
    ) -> RequestStream:
        """Take a request in.

        Raises ParameterError at the door, EngineDrainingError during shutdown, EngineDeadError if it is dead.
        """
        if self._dead:
            raise EngineDeadError(DEAD_ERROR)
        if self._draining or self._closing:
            raise EngineDrainingError("the server is shutting down")
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[None] = loop.create_future()
        stream = RequestStream(request_id, self._post_abort)
        arrival = time.monotonic()

        def add() -> None:
            try:
                self._engine.add(
                    request_id, prompt_token_ids, params, cache_salt=cache_salt, arrival_time=arrival
                )
            except Exception as error:
                loop.call_soon_threadsafe(_reject, accepted, error)
            else:
                self._readers[request_id] = (loop, stream)
                loop.call_soon_threadsafe(_accept, accepted)

        if not self._post(add):
            raise EngineDeadError(DEAD_ERROR)
        try:
            await accepted
        except asyncio.CancelledError:
            stream.abort()
            raise
        return stream

    async def drain(self, timeout: float) -> bool:
        """Refuse new requests and wait for the running ones; abort them after `timeout` s and say False."""
        self._draining = True
        deadline = time.monotonic() + timeout
        while self._engine.has_unfinished and not self._dead:
            if time.monotonic() >= deadline:
                self._post(self._abort_all)
                return False
            await asyncio.sleep(0.02)
        return True

    def close(self) -> None:
        """Stop the engine thread. Requests that still run end with an error."""
        self._closing = True
        self._post(lambda: None)
        self._thread.join(timeout=10)

    def _cache_info(self) -> dict[str, str]:
        plan, cache = self._assembly.plan, self._assembly.config.cache
        return {
            "block_size": str(plan.block_size),
            "num_gpu_blocks": str(plan.num_blocks),
            "cache_dtype": plan.kv_cache_dtype,
            "enable_prefix_caching": str(cache.enable_prefix_caching),
        }

    def _post(self, command: Command) -> bool:
        """Hand a command to the engine thread; False when it has ended and takes none."""
        with self._wake:
            if self._ended:
                return False
            self._commands.append(command)
            self._wake.notify()
            return True

    def _post_abort(self, request_id: str) -> None:
        self._post(lambda: self._abort(request_id))

    # From here on: the engine thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take_commands()
                if self._engine.has_unfinished and not self._closing:
                    self._deliver(self._engine.step(PATIENCE))
        except BaseException:
            logger.critical("the engine thread died", exc_info=True)
            self._dead = True
        finally:
            self._end_all(DEAD_ERROR if self._dead else "the server is shutting down")

    def _take_commands(self) -> None:
        with self._wake:
            while not self._commands and not self._engine.has_unfinished and not self._closing:
                self._wake.wait()
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()

    def _deliver(self, deltas: list[RequestDelta]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[RequestStream, RequestDelta]]] = {}
        for delta in deltas:
            reader = self._readers.get(delta.request_id)
            if reader is None:
                continue
            if delta.finished:
                del self._readers[delta.request_id]
            by_loop.setdefault(reader[0], []).append((reader[1], delta))
        for loop, parts in by_loop.items():
            _call(loop, _deliver_all, parts)

    def _abort(self, request_id: str) -> None:
        self._readers.pop(request_id, None)
        self._engine.abort(request_id)

    def _abort_all(self) -> None:
        for request_id in self._engine.unfinished_ids:
            self._deliver(self._engine.abort(request_id))

    def _end_all(self, message: str) -> None:
        """The thread is about to end: no stream may wait for ever, nor a submit that was not taken yet."""
        with self._wake:
            self._ended = True
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()
        for request_id in list(self._readers):
            choice = ChoiceDelta(0, "", (), finish_reason=FinishReason.ERROR.value, error=message)
            self._deliver([RequestDelta(request_id, (choice,), 0, finished=True)])


def _display_name(model: str) -> str:
    """A file goes by its name, everything else as it was asked for."""
    return Path(model).stem if model.endswith(".gguf") else model


def _accept(accepted: asyncio.Future[None]) -> None:
    if not accepted.done():
        accepted.set_result(None)


def _reject(accepted: asyncio.Future[None], error: Exception) -> None:
    if not accepted.done():
        accepted.set_exception(error)


def _deliver_all(parts: list[tuple[RequestStream, RequestDelta]]) -> None:
    for stream, delta in parts:
        stream.deliver(delta)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    """Run on the loop; a loop that has closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        logger.debug("a reader's event loop has closed")
