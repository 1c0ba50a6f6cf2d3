"""What /metrics says: names, labels, buckets, and figures that only grow."""

from __future__ import annotations

import dataclasses

from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.metrics import EngineMetrics
from octavo.engine.stats import RequestStats, StepStats
from octavo.scheduler.stats import SchedulerStats

SCHEDULER = SchedulerStats(
    num_running=3,
    num_waiting=2,
    num_blocks=64,
    num_free_blocks=20,
    num_cached_blocks=28,
    num_held_blocks=16,
    num_prefix_queries=100,
    num_prefix_hits=40,
    num_admitted=7,
    num_delayed=5,
    num_preemptions=1,
    num_evictions=9,
    num_copied_blocks=4,
    num_refused=6,
)
REQUEST = RequestStats(
    finish_reason="stop",
    num_prompt_tokens=30,
    num_cached_tokens=10,
    num_output_tokens=22,
    n=2,
    max_tokens=50,
    e2e_seconds=3.5,
    queue_seconds=0.5,
    prefill_seconds=1.0,
    decode_seconds=2.0,
)


def new_metrics() -> EngineMetrics:
    return EngineMetrics("toy", 100, {"block_size": "16", "num_gpu_blocks": "64"})


def figures(metrics: EngineMetrics) -> dict[str, float]:
    """Sample name with its labels beyond model_name and engine → value."""
    samples = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "toy"
            assert labels.pop("engine") == "0"
            extra = "".join(f"[{key}={value}]" for key, value in sorted(labels.items()))
            samples[sample.name + extra] = sample.value
    return samples


def step(**fields: object) -> StepStats:
    given = {
        "scheduler": SCHEDULER,
        "num_tokens": 9,
        "num_prompt_tokens": 8,
        "num_generated_tokens": 1,
    } | fields
    return StepStats(**given)  # type: ignore[arg-type]


def test_names_that_dashboards_and_gateways_read_are_there_from_the_start() -> None:
    found = figures(new_metrics())
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason[reason=capacity]",
        "num_requests_waiting_by_reason[reason=deferred]",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prompt_tokens_cached_total",
        "prompt_tokens_by_source_total[source=local_compute]",
        "request_success_total[finished_reason=stop]",
        "request_success_total[finished_reason=length]",
        "request_success_total[finished_reason=abort]",
        "request_success_total[finished_reason=error]",
        "num_preemptions_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "request_time_per_output_token_seconds_count",
        "e2e_request_latency_seconds_count",
        "request_queue_time_seconds_count",
        "request_inference_time_seconds_count",
        "request_prefill_time_seconds_count",
        "request_decode_time_seconds_count",
        "request_prompt_tokens_count",
        "request_generation_tokens_count",
        "request_params_max_tokens_count",
        "request_params_n_count",
        "request_prefill_kv_computed_tokens_count",
        "iteration_tokens_total_count",
    ):
        assert found[f"vllm:{name}"] == 0
    assert found["vllm:cache_config_info[block_size=16][num_gpu_blocks=64]"] == 1
    assert not [name for name in found if "_created" in name]


def test_scheduler_figures() -> None:
    metrics = new_metrics()
    metrics.on_step(step())
    found = figures(metrics)
    expected = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 2,
        "vllm:num_requests_waiting_by_reason[reason=capacity]": 2,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 40,
        "vllm:num_preemptions_total": 1,
        "octavo:kv_blocks": 64,
        "octavo:kv_blocks_free": 20,
        "octavo:kv_blocks_cached": 28,
        "octavo:kv_blocks_held": 16,
        "octavo:kv_blocks_evicted_total": 9,
        "octavo:kv_blocks_copied_total": 4,
        "octavo:requests_admitted_total": 7,
        "octavo:requests_refused_total": 6,
        "octavo:admissions_delayed_total": 5,
    }
    assert {name: found[name] for name in expected} == expected


def test_gauges_follow_an_abort_of_everything() -> None:
    metrics = new_metrics()
    metrics.on_step(step())
    metrics.on_scheduler(dataclasses.replace(SCHEDULER, num_running=0, num_waiting=0, num_held_blocks=0))
    found = figures(metrics)
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["vllm:kv_cache_usage_perc"] == 0


def test_tokens_add_up() -> None:
    metrics = new_metrics()
    for _ in range(3):
        metrics.on_step(step(num_prompt_tokens=8, num_generated_tokens=2))
    found = figures(metrics)
    assert found["vllm:generation_tokens_total"] == 6
    assert found["vllm:prompt_tokens_by_source_total[source=local_compute]"] == 24
    assert found["vllm:prompt_tokens_by_source_total[source=local_cache_hit]"] == 40
    assert found["vllm:prompt_tokens_cached_total"] == 40
    assert found["vllm:prompt_tokens_total"] == 64


def test_step_times_fall_into_buckets() -> None:
    metrics = new_metrics()
    metrics.on_step(step(num_tokens=9, first_token_seconds=(0.05, 0.06), inter_token_seconds=(0.2, 99.0)))
    metrics.on_step(step(num_tokens=8))
    found = figures(metrics)
    name = "vllm:time_to_first_token_seconds"
    assert [found[f"{name}_bucket[le={le}]"] for le in ("0.04", "0.06", "+Inf")] == [0, 2, 2]
    assert found[f"{name}_count"] == 2
    assert abs(found[f"{name}_sum"] - 0.11) < 1e-9
    name = "vllm:inter_token_latency_seconds"
    assert [found[f"{name}_bucket[le={le}]"] for le in ("0.15", "0.2", "80.0", "+Inf")] == [0, 1, 1, 2]
    assert [found[f"vllm:iteration_tokens_total_bucket[le={le}]"] for le in ("1.0", "8.0", "16.0")] == [
        0,
        1,
        2,
    ]


def test_finished_requests() -> None:
    metrics = new_metrics()
    metrics.on_request_finished(REQUEST)
    metrics.on_request_finished(dataclasses.replace(REQUEST, finish_reason="abort", max_tokens=None))
    found = figures(metrics)
    assert found["vllm:request_success_total[finished_reason=stop]"] == 1
    assert found["vllm:request_success_total[finished_reason=abort]"] == 1
    assert found["vllm:request_prompt_tokens_sum"] == 60
    assert found["vllm:request_generation_tokens_sum"] == 44
    assert found["vllm:request_params_max_tokens_count"] == 1
    # Times are of the request that came to its end.
    assert found["vllm:e2e_request_latency_seconds_sum"] == 3.5
    assert found["vllm:request_inference_time_seconds_sum"] == 3.0
    assert found["vllm:request_prefill_kv_computed_tokens_sum"] == 20
    assert found["vllm:request_time_per_output_token_seconds_sum"] == 0.2
    assert found["vllm:request_prompt_tokens_bucket[le=20.0]"] == 0
    assert found["vllm:request_prompt_tokens_bucket[le=50.0]"] == 2


def test_token_buckets_end_at_the_models_length() -> None:
    bounds = [
        name.partition("le=")[2].rstrip("]")
        for name in figures(new_metrics())
        if name.startswith("vllm:request_prompt_tokens_bucket")
    ]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "+Inf"]


def test_several_engines_in_a_process() -> None:
    first, second = new_metrics(), new_metrics()
    first.on_step(step())
    assert figures(second)["vllm:generation_tokens_total"] == 0
