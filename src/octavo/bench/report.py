"""Figures of a load, under the names that the field knows from vLLM's benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from octavo.bench.client import Answer
from octavo.bench.load import LoadResult

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
}


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, interpolated between neighbours."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values, no percentile")
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread_ms(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """mean_NAME_ms, median_NAME_ms, std_NAME_ms and p99_NAME_ms; empty where there are no values."""
    if not seconds:
        return {}
    return {
        f"mean_{name}_ms": statistics.fmean(seconds) * 1e3,
        f"median_{name}_ms": percentile(seconds, 0.5) * 1e3,
        f"std_{name}_ms": statistics.pstdev(seconds) * 1e3,
        f"p99_{name}_ms": percentile(seconds, 0.99) * 1e3,
    }


def summarize(result: LoadResult, goodput_ms: Mapping[str, float] | None = None) -> dict[str, object]:
    """One flat object. goodput_ms: bounds by latency (ttft, tpot, e2el); requests within all of them count
    for request_goodput."""
    done = [answer for answer in result.answers if answer.error is None]
    failed = [answer for answer in result.answers if answer.error is not None]
    num_input = sum(answer.input_len for answer in done)
    num_output = sum(answer.output_len for answer in done)
    seconds = result.seconds
    report: dict[str, object] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(failed),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
    }
    if goodput_ms is not None:
        good = sum(_is_good(answer, goodput_ms) for answer in done)
        report["request_goodput"] = good / seconds
    for name in LATENCIES:
        report |= spread_ms(name, latencies(done, name))
    if failed:
        report["errors"] = sorted({str(answer.error) for answer in failed})
    return report


def latencies(answers: Iterable[Answer], name: str) -> list[float]:
    """Seconds, of every answer that has this latency; of `itl` every gap."""
    match name:
        case "ttft":
            return [answer.ttft for answer in answers]
        case "tpot":
            return [answer.tpot for answer in answers if answer.tpot is not None]
        case "itl":
            return [gap for answer in answers for gap in answer.itls]
        case "e2el":
            return [answer.e2el for answer in answers]
    raise ValueError(f"unknown latency {name!r}; known: {', '.join(LATENCIES)}")


def _is_good(answer: Answer, bounds_ms: Mapping[str, float]) -> bool:
    return all(
        seconds * 1e3 <= bound for name, bound in bounds_ms.items() for seconds in latencies([answer], name)
    )
