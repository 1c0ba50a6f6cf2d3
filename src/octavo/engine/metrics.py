"""Prometheus metrics of one engine, under the `vllm:` names that dashboards and gateways read.

The engine thread only stores numbers: a step costs a few microseconds. The text is built when somebody asks,
by a collector that belongs to this engine's own registry, so that a process can hold several engines.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from octavo.engine.stats import RequestStats, StepStats
from octavo.scheduler.stats import SchedulerStats

# The boundaries of vLLM's histograms, so that boards made for it draw the same buckets.
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
BETWEEN_TOKENS_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES_BUCKETS = (1, 2, 5, 10, 20)
FINISH_REASONS = ("stop", "length", "abort", "error")

_STEP_HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "vllm:time_to_first_token_seconds": ("Arrival to first token, in seconds.", FIRST_TOKEN_BUCKETS),
    "vllm:inter_token_latency_seconds": ("Time between two tokens, in seconds.", BETWEEN_TOKENS_BUCKETS),
    "vllm:iteration_tokens_total": ("Tokens computed in a step.", STEP_TOKENS_BUCKETS),
}
_REQUEST_HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "vllm:e2e_request_latency_seconds": ("Arrival to end.", REQUEST_SECONDS_BUCKETS),
    "vllm:request_queue_time_seconds": ("Arrival to first being scheduled.", REQUEST_SECONDS_BUCKETS),
    "vllm:request_prefill_time_seconds": ("First scheduled to first token.", REQUEST_SECONDS_BUCKETS),
    "vllm:request_decode_time_seconds": ("First token to last.", REQUEST_SECONDS_BUCKETS),
    "vllm:request_inference_time_seconds": ("First scheduled to last token.", REQUEST_SECONDS_BUCKETS),
    "vllm:request_time_per_output_token_seconds": (
        "Decode time over the tokens after the first.",
        BETWEEN_TOKENS_BUCKETS,
    ),
    "vllm:request_params_n": ("Choices asked for.", CHOICES_BUCKETS),
}
_TOKEN_HISTOGRAMS: Mapping[str, str] = {
    "vllm:request_prompt_tokens": "Tokens of the prompt.",
    "vllm:request_generation_tokens": "Tokens generated, over all choices.",
    "vllm:request_params_max_tokens": "max_tokens, where it was given.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens that the prefix cache did not give.",
}
_SCHEDULER_GAUGES: Mapping[str, tuple[str, str]] = {
    "vllm:num_requests_running": ("num_running", "Sequences that run."),
    "vllm:num_requests_waiting": ("num_waiting", "Requests that wait."),
    "vllm:kv_cache_usage_perc": ("kv_cache_usage", "Held blocks as a share of the pool, 0 to 1."),
    "octavo:kv_blocks": ("num_blocks", "Blocks in the pool."),
    "octavo:kv_blocks_free": ("num_free_blocks", "Blocks with no holder and no content to find."),
    "octavo:kv_blocks_cached": ("num_cached_blocks", "Blocks with no holder that can be found by prefix."),
    "octavo:kv_blocks_held": ("num_held_blocks", "Blocks in at least one table."),
}
_SCHEDULER_COUNTERS: Mapping[str, tuple[str, str]] = {
    "vllm:prefix_cache_queries": ("num_prefix_queries", "Prompt tokens looked up in the prefix cache."),
    "vllm:prefix_cache_hits": ("num_prefix_hits", "Of those, tokens found."),
    "vllm:prompt_tokens_cached": ("num_prefix_hits", "Prompt tokens that the prefix cache gave."),
    "vllm:num_preemptions": ("num_preemptions", "Sequences that gave up their blocks for others."),
    "octavo:requests_admitted": ("num_admitted", "Requests admitted."),
    "octavo:requests_refused": ("num_refused", "Requests refused at the door."),
    "octavo:admissions_delayed": ("num_delayed", "Steps in which the head of the queue waited for blocks."),
    "octavo:kv_blocks_evicted": ("num_evictions", "Cached blocks given up for new content."),
    "octavo:kv_blocks_copied": ("num_copied_blocks", "Blocks copied: copy-on-write and partial matches."),
}


class EngineMetrics:
    """Counts what the engine reports; renders it for `/metrics`.

    `on_scheduler`, `on_step` and `on_request_finished` are for the engine thread, `render` for any.
    """

    def __init__(self, model_name: str, max_model_len: int, cache_info: Mapping[str, str]) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._cache_info = dict(cache_info)
        self._scheduler: SchedulerStats | None = None
        self._num_prompt_tokens_computed = 0
        self._num_generated_tokens = 0
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        token_buckets = _one_two_five(max_model_len)
        described = {
            **_STEP_HISTOGRAMS,
            **_REQUEST_HISTOGRAMS,
            **{name: (text, token_buckets) for name, text in _TOKEN_HISTOGRAMS.items()},
        }
        self._histograms = {name: _Histogram(name, *rest) for name, rest in described.items()}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def on_scheduler(self, stats: SchedulerStats) -> None:
        """The scheduler's state now. Also for a change outside a step, such as an abort of all that ran."""
        self._scheduler = stats

    def on_step(self, stats: StepStats) -> None:
        self._scheduler = stats.scheduler
        self._num_prompt_tokens_computed += stats.num_prompt_tokens
        self._num_generated_tokens += stats.num_generated_tokens
        self._observe("vllm:iteration_tokens_total", (stats.num_tokens,))
        self._observe("vllm:time_to_first_token_seconds", stats.first_token_seconds)
        self._observe("vllm:inter_token_latency_seconds", stats.inter_token_seconds)

    def on_request_finished(self, stats: RequestStats) -> None:
        """One outcome a request. Times are observed only for those that came to their own end."""
        reason = stats.finish_reason if stats.finish_reason in self._finished else "error"
        self._finished[reason] += 1
        self._observe("vllm:request_prompt_tokens", (stats.num_prompt_tokens,))
        self._observe("vllm:request_generation_tokens", (stats.num_output_tokens,))
        self._observe("vllm:request_params_n", (stats.n,))
        if stats.max_tokens is not None:
            self._observe("vllm:request_params_max_tokens", (stats.max_tokens,))
        if reason in ("stop", "length"):
            self._observe_times(stats)

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks of a collector: every metric with its value now."""
        yield from self._collect_scheduler()
        yield from self._collect_totals()
        for histogram in self._histograms.values():
            yield histogram.collect(self._labels)

    def _observe(self, name: str, values: Sequence[float]) -> None:
        if values:
            self._histograms[name].observe(values)

    def _observe_times(self, stats: RequestStats) -> None:
        self._observe("vllm:e2e_request_latency_seconds", (stats.e2e_seconds,))
        self._observe("vllm:request_queue_time_seconds", (stats.queue_seconds,))
        self._observe("vllm:request_prefill_time_seconds", (stats.prefill_seconds,))
        self._observe("vllm:request_decode_time_seconds", (stats.decode_seconds,))
        self._observe("vllm:request_inference_time_seconds", (stats.prefill_seconds + stats.decode_seconds,))
        num_computed = stats.num_prompt_tokens - stats.num_cached_tokens
        self._observe("vllm:request_prefill_kv_computed_tokens", (num_computed,))
        num_later_tokens = stats.num_output_tokens / stats.n - 1  # of each choice, on average
        if num_later_tokens > 0:
            per_token = stats.decode_seconds / num_later_tokens
            self._observe("vllm:request_time_per_output_token_seconds", (per_token,))

    def _collect_scheduler(self) -> Iterator[Metric]:
        stats = self._scheduler
        for name, (field, text) in _SCHEDULER_GAUGES.items():
            yield self._gauge(name, text, 0 if stats is None else getattr(stats, field))
        for name, (field, text) in _SCHEDULER_COUNTERS.items():
            yield self._counter(name, text, 0 if stats is None else getattr(stats, field))
        waiting = {"capacity": 0 if stats is None else stats.num_waiting, "deferred": 0}
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by what they wait for.",
            labels=[*self._labels, "reason"],
        )
        for reason, number in waiting.items():
            by_reason.add_metric([*self._labels.values(), reason], number)
        yield by_reason
        info = {**self._labels, **self._cache_info}
        cache = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's settings.", labels=list(info))
        cache.add_metric(list(info.values()), 1)
        yield cache

    def _collect_totals(self) -> Iterator[Metric]:
        num_hits = 0 if self._scheduler is None else self._scheduler.num_prefix_hits
        num_computed = self._num_prompt_tokens_computed
        yield self._counter("vllm:prompt_tokens", "Prompt tokens computed or found.", num_computed + num_hits)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", self._num_generated_tokens)
        yield self._counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their keys and values came from.",
            "source",
            {"local_compute": num_computed, "local_cache_hit": num_hits},
        )
        yield self._counters(
            "vllm:request_success", "Requests that ended, by how.", "finished_reason", self._finished
        )

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family


class _Histogram:
    """Counts per bucket. One lock a batch of values, where prometheus_client's own takes two a value."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, values: Iterable[float]) -> None:
        with self._lock:
            for value in values:
                self._counts[bisect_left(self._bounds, value)] += 1
                self._sum += value

    def collect(self, labels: Mapping[str, str]) -> HistogramMetricFamily:
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets: list[tuple[str, float]] = []
        cumulative = 0
        for bound, count in zip((*map(float, self._bounds), float("inf")), counts, strict=True):
            cumulative += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), cumulative))
        family = HistogramMetricFamily(self._name, self._text, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, total)
        return family


def _one_two_five(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, …, the last one not above `limit`, but never empty."""
    bounds: list[int] = []
    decade = 1
    while decade <= limit:
        bounds += [decade * factor for factor in (1, 2, 5) if decade * factor <= limit]
        decade *= 10
    return bounds or [1]
