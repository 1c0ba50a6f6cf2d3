"""What may come in: refusal at the door, with the numbers, and what an admission needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.cache.kv_cache import KVCacheManager
from octavo.cache.promises import RoomToEnd
from octavo.config import SchedulerConfig
from octavo.params import ParameterError
from octavo.request import Request
from octavo.scheduler.entry import Entry
from octavo.scheduler.stop import end_len


class RequestRefused(ParameterError):  # noqa: N818 - it says what happened
    """A request that could never run here. `param` names the field, the message has the numbers."""


class AdmissionRules:
    """Decides on requests and entries; holds no state of its own."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, max_model_len: int) -> None:
        self._config = config
        self._cache = cache
        self._max_model_len = max_model_len
        # The last token of an answer is never stored, so a lone sequence may be one longer than the pool.
        self._longest = min(max_model_len, cache.num_blocks * cache.block_size + 1)
        self._num_spare_blocks = math.ceil(config.watermark * cache.num_blocks)

    def end_len(self, request: Request) -> int:
        """Tokens at which the request's sequences end: max_tokens, the model's length or the pool's."""
        return end_len(len(request.prompt_token_ids), request.params.max_tokens, self._longest)

    def check(self, request: Request) -> None:
        """Raises RequestRefused for what could never run, however long it waited."""
        num_prompt, n = len(request.prompt_token_ids), request.params.n
        if not num_prompt:
            raise RequestRefused("the prompt is empty: it needs at least one token", "prompt")
        if num_prompt >= self._max_model_len:
            raise RequestRefused(
                f"the prompt has {num_prompt} tokens; with max_model_len {self._max_model_len} "
                f"at most {self._max_model_len - 1} fit, so that one can be generated",
                "prompt",
            )
        num_blocks, pool = self._cache.num_blocks_of(num_prompt), self._cache.num_blocks
        if num_blocks > pool:
            raise RequestRefused(
                f"the prompt has {num_prompt} tokens and needs {num_blocks} blocks; the KV cache has {pool}, "
                f"{pool * self._cache.block_size} tokens",
                "prompt",
            )
        if n > self._config.max_num_seqs:
            raise RequestRefused(f"n is {n}; at most {self._config.max_num_seqs} sequences run at once", "n")
        if self._config.admission == "reserve":
            self._check_room_to_end(request)

    def room(self, entry: Entry) -> RoomToEnd | None:
        """The promise with which an entry is admitted, if any.

        In watermark mode only to a sequence that was preempted often enough, and not to its forks: together
        they may be more than the pool, and one after the other they run in any.
        """
        if self._config.admission == "reserve":
            return RoomToEnd(entry.end_len - 1, entry.num_seats)
        if entry.seq.num_preemptions >= self._config.max_preemptions:
            return RoomToEnd(entry.end_len - 1)
        return None

    def num_spare_blocks(self, num_running: int) -> int:
        """Blocks that must stay free at an admission, for those who run to grow; none when nobody does."""
        if self._config.admission == "reserve" or not num_running:
            return 0
        return self._num_spare_blocks

    def _check_room_to_end(self, request: Request) -> None:
        num_prompt, n, end = len(request.prompt_token_ids), request.params.n, self.end_len(request)
        num_needed = self._cache.num_blocks_to_end(num_prompt, RoomToEnd(end - 1, n))
        if num_needed > self._cache.num_blocks:
            raise RequestRefused(
                f"{n} × {end} tokens (prompt {num_prompt}) need {num_needed} blocks at their end; the KV "
                f"cache has {self._cache.num_blocks}, and in reserve mode a request must fit to its end",
                "n" if n > 1 else "max_tokens",
            )


@dataclass(slots=True)
class AdmissionCounters:
    """Since start."""

    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_admitted: int = 0
    num_delayed: int = 0
    num_preemptions: int = 0
    num_refused: int = 0

    def on_admitted(self, entry: Entry, members: Iterable[Entry], *, is_caching: bool) -> None:
        """A step that admitted it was committed. Hits are counted once a request and told to its members."""
        self.num_admitted += 1
        if entry.was_admitted:
            return
        entry.was_admitted = True
        seq = entry.seq
        if is_caching:
            self.num_prefix_queries += seq.num_prompt_tokens
            self.num_prefix_hits += seq.num_computed
        for member in members:
            member.seq.num_cached = seq.num_computed
