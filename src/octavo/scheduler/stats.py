"""What the scheduler shows of itself: gauges of now, counters since start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    # now
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    """Blocks with no holder and nothing to find."""
    num_cached_blocks: int
    """Blocks with no holder whose content can still be found by prefix."""
    num_held_blocks: int
    """Blocks in at least one table. free + cached + held = all."""
    # since start
    num_prefix_queries: int
    """Prompt tokens looked up in the prefix tree at first admissions."""
    num_prefix_hits: int
    """Of those, tokens found."""
    num_admitted: int
    num_delayed: int
    """Steps in which the head of the queue had to wait for blocks."""
    num_preemptions: int
    num_evictions: int
    """Cached blocks given up for new content."""
    num_copied_blocks: int
    """Copy-on-write and partial-match copies."""
    num_refused: int

    @property
    def kv_cache_usage(self) -> float:
        """Held blocks as a share of the pool, 0 to 1."""
        return self.num_held_blocks / self.num_blocks
