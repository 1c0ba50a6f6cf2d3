"""Shares are computed from what was timed, against limits that a test makes up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo import _native
from octavo.bench.kernels import HeadShape, measure_attention, measure_matmul
from octavo.bench.machine import Limits, describe_machine, look_again, measure_beside, measure_limits
from octavo.bench.sampling import SETTINGS, measure_sampling
from octavo.kernels.weights import WeightType

LIMITS = Limits(
    isa=_native.default_isa,
    num_threads=2,
    stream_bytes_per_second_1=1e9,
    stream_bytes_per_second=2e9,
    fma_ops_per_second=1e10,
    int8_ops_per_second=4e10,
    group_ops_per_second=3e10,
    phase_seconds=1e-7,
)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.machine.STREAM_BYTES", 2 << 20)
    limits = measure_limits(2, repeats=1)
    assert limits.num_threads == 2
    assert limits.stream_bytes_per_second > 1e6
    assert (limits.int8_ops_per_second is None) == (limits.isa == "portable")
    assert measure_limits(1, isa="portable", repeats=1).fma_ops_per_second is None
    assert describe_machine()["isa"] == _native.default_isa


def test_a_look_again_changes_the_rates_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.machine.STREAM_BYTES", 2 << 20)
    now = look_again(LIMITS)
    assert now.stream_bytes_per_second != LIMITS.stream_bytes_per_second
    assert now.stream_bytes_per_second_1 == LIMITS.stream_bytes_per_second_1
    assert (now.int8_ops_per_second is None) == (now.isa == "portable")
    assert (now.group_ops_per_second is None) == (now.isa == "portable")


def test_limits_are_those_around_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter((2.0, 4.0, 8.0))

    def look(limits: Limits) -> Limits:
        rate = next(looks)
        return replace(limits, stream_bytes_per_second=rate, fma_ops_per_second=10 * rate)

    monkeypatch.setattr("octavo.bench.machine.look_again", look)
    limits = replace(LIMITS, int8_ops_per_second=None)
    measured = list(measure_beside(limits, [lambda: "first", lambda: "second"]))
    assert [(name, now.stream_bytes_per_second, now.fma_ops_per_second) for name, now in measured] == [
        ("first", 3.0, 30.0),
        ("second", 6.0, 60.0),
    ]
    assert measured[0][1].int8_ops_per_second is None


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose limits do not move."""
    monkeypatch.setattr("octavo.bench.machine.look_again", lambda limits: limits)


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("weight_type", [WeightType.Q4_0, WeightType.F16])
def test_matmul_shares(weight_type: WeightType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.kernels.COLD_BYTES", 1 << 16)
    small, large = measure_matmul(weight_type, 64, 96, (1, 3), LIMITS, repeats=2)
    rate = 4e10 if weight_type is WeightType.Q4_0 else 1e10
    assert (small.num_tokens, large.num_tokens) == (1, 3)
    assert large.arithmetic_share == pytest.approx(2 * 64 * 96 * 3 / rate / large.warm_seconds)
    if weight_type is WeightType.Q4_0:
        assert large.group_share == pytest.approx(2 * 64 * 96 * 3 / 3e10 / large.warm_seconds)
    else:
        assert large.group_share is None
    num_bytes = 64 * 96 // weight_type.group_size * weight_type.group_bytes
    assert small.bandwidth_share == pytest.approx(num_bytes / 2e9 / small.cold_seconds)
    ideal = max(num_bytes / 2e9, 2 * 64 * 96 / rate)
    assert small.limit_share == pytest.approx(ideal / small.cold_seconds)


@pytest.mark.usefixtures("steady")
def test_an_unknown_rate_gives_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.kernels.COLD_BYTES", 1)
    limits = replace(LIMITS, int8_ops_per_second=None)
    (result,) = measure_matmul(WeightType.Q8_0, 8, 32, (1,), limits, repeats=1)
    assert result.arithmetic_share is None
    assert result.limit_share == result.bandwidth_share


@pytest.mark.parametrize(("num_seqs", "num_queries", "phase"), [(3, 1, "decode"), (1, 8, "prefill")])
def test_attention_shares(
    num_seqs: int, num_queries: int, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.bench.kernels.COLD_BYTES", 1 << 16)
    heads = HeadShape(num_kv_heads=2, group_heads=2, head_dim=16)
    result = measure_attention(
        LIMITS, context_len=40, num_seqs=num_seqs, num_queries=num_queries, repeats=1, heads=heads
    )
    assert result.phase == phase
    num_bytes = num_seqs * 40 * 2 * 2 * 2 * 16
    assert result.bandwidth_share == pytest.approx(num_bytes / 2e9 / result.scattered_seconds)
    pairs = num_seqs * sum(40 - num_queries + 1 + i for i in range(num_queries))
    assert result.arithmetic_share == pytest.approx(4 * 64 * pairs / 1e10 / result.scattered_seconds)
    assert result.paging_cost == pytest.approx(result.in_order_seconds / result.contiguous_seconds - 1)
    assert result.scatter_cost == pytest.approx(result.scattered_seconds / result.in_order_seconds - 1)


def test_sampling_of_every_setting() -> None:
    results = measure_sampling(vocab_size=300, num_rows=3, repeats=1)
    assert [result.setting for result in results] == list(SETTINGS)
    assert all(result.seconds_per_row > 0 for result in results)
