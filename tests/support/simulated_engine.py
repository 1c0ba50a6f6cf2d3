"""schedule, run, commit over PagedMemory: the real scheduler and cache with a model of plain integers."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.batch import ScheduledBatch, SequenceUpdate
from octavo.cache.kv_cache import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.params import SamplingParams
from octavo.request import FinishReason, Request
from octavo.scheduler.scheduler import Scheduler
from support.paged_memory import PagedMemory, answer


class SimulatedEngine:
    """Checks integrity after every step, and at the end that nothing is held."""

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        max_model_len: int = 256,
        eos_token_ids: frozenset[int] = frozenset(),
        prefix_caching: bool = True,
        max_rounds: int = 1,
        **config: object,
    ) -> None:
        self.max_rounds = max_rounds
        self.cache = KVCacheManager(num_blocks, block_size, enable_prefix_caching=prefix_caching)
        self.scheduler = Scheduler(
            SchedulerConfig(**config),  # type: ignore[arg-type]
            self.cache,
            max_model_len=max_model_len,
            eos_token_ids=eos_token_ids,
        )
        self.memory = PagedMemory(num_blocks, block_size)
        self.requests: dict[str, Request] = {}
        self.updates: list[SequenceUpdate] = []
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], FinishReason] = {}
        self.num_cached: dict[str, int] = {}
        self._salts: list[str] = []
        """By sequence id: ids are given in order of arrival."""

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int | None = 8,
        salt: str = "",
        **params: object,
    ) -> str:
        sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
        request = Request(
            request_id=request_id, prompt_token_ids=tuple(prompt), params=sampling, cache_salt=salt
        )
        self.scheduler.add(request)
        self.requests[request_id] = request
        self._salts += [salt] * sampling.n
        return request_id

    def step(self) -> ScheduledBatch:
        batch = self.scheduler.schedule(self.max_rounds)
        self.commit(batch)
        return batch

    def commit(self, batch: ScheduledBatch) -> list[SequenceUpdate]:
        updates = self.scheduler.commit(batch, self.memory.run(batch, self._salts))
        self.take(updates)
        return updates

    def fail(self, batch: ScheduledBatch, num_written: int = 10**9) -> list[SequenceUpdate]:
        """The step makes its copies, writes a part, and raises."""
        self.memory.copy(batch.copies)
        for scheduled in batch.sequences[:num_written]:
            junk = [0] * len(scheduled.token_ids)
            self.memory.write(scheduled.block_table, scheduled.start, junk, "junk")
        updates = self.scheduler.fail(batch, "boom")
        self.take(updates)
        return updates

    def take(self, updates: list[SequenceUpdate]) -> None:
        self.updates += updates
        for update in updates:
            key = (update.request_id, update.index)
            assert key not in self.reasons, "an update came after the end"
            if update.token_id is not None:
                self.outputs.setdefault(key, []).append(update.token_id)
                self.num_cached[update.request_id] = update.num_cached_tokens
            if update.finish_reason is not None:
                self.reasons[key] = update.finish_reason
        self.scheduler.check_integrity()

    def run(self, max_steps: int = 2000) -> None:
        """Until nothing is left to do."""
        while self.scheduler.has_work:
            max_steps -= 1
            assert max_steps > 0, "no progress"
            self.step()
        self.assert_drained()

    def generate(self, prompt: Sequence[int], max_tokens: int = 8, **params: object) -> list[int]:
        """One request alone, to its end."""
        request_id = self.add(f"request-{len(self.requests)}", prompt, max_tokens, **params)  # type: ignore[arg-type]
        self.run()
        return self.outputs[request_id, 0]

    def assert_right(self, request_id: str) -> None:
        """Every choice that was not cut short has the tokens of a cold, lonely run."""
        request = self.requests[request_id]
        for index in range(request.params.n):
            output = self.outputs[request_id, index]
            expected = answer(request.prompt_token_ids, len(output), index, request.cache_salt)
            assert output == expected, f"{request_id}[{index}] is wrong"

    def assert_drained(self) -> None:
        stats = self.scheduler.stats()
        assert stats.num_running == stats.num_waiting == stats.num_held_blocks == 0
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        assert self.cache.num_promised_blocks == 0
        self.scheduler.check_integrity()
