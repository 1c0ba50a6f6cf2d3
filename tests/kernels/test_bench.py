"""The clocks of the benchmark: they run on every table, count what they claim, and refuse nonsense."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import _native
from octavo.kernels.quantization import quantize
from octavo.kernels.weights import WeightType

ISAS = list(_native.available_isas)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_reading_has_a_rate_a_repetition(isa: str, num_threads: int) -> None:
    rates = _native.stream_rates(4 << 20, num_threads, 3, isa)
    assert len(rates) == 3
    assert all(1e6 < rate < 1e13 for rate in rates)


@pytest.mark.parametrize("kind", ["fma", "int8", "groups"])
def test_loops_run_where_the_table_has_them(kind: str) -> None:
    assert _native.loop_rates(kind, 1, 1, "portable") is None
    if "avx2" in ISAS:
        rates = _native.loop_rates(kind, 2, 2, "avx2")
        assert rates is not None
        assert len(rates) == 2
        assert all(1e8 < rate < 1e14 for rate in rates)


def test_a_phase_takes_time() -> None:
    assert all(0 <= seconds < 0.1 for seconds in _native.phase_seconds(2, 2))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_type", list(WeightType))
def test_every_weight_type_is_timed(isa: str, weight_type: WeightType) -> None:
    weight = quantize(np.ones((24, 64), np.float32), weight_type)
    timer = _native.LinearTimer(weight.data, weight_type.value, 24, 64, num_copies=3, num_threads=2, isa=isa)
    assert timer.matrix_bytes >= weight.num_bytes
    assert [len(timer.measure(m, 2)) for m in (1, 5)] == [2, 2]


def test_nonsense_is_refused() -> None:
    weight = quantize(np.ones((8, 32), np.float32), WeightType.Q4_0)
    with pytest.raises(ValueError, match="num_bytes"):
        _native.stream_rates(100, 1, 1)
    with pytest.raises(ValueError, match="num_threads"):
        _native.stream_rates(1 << 20, 0, 1)
    with pytest.raises(ValueError, match="kind"):
        _native.loop_rates("divide", 1, 1)
    with pytest.raises(ValueError, match="data"):
        _native.LinearTimer(weight.data, WeightType.Q4_0.value, 16, 32, num_copies=1, num_threads=1)
    with pytest.raises(ValueError, match="type"):
        _native.LinearTimer(weight.data, 77, 8, 32, num_copies=1, num_threads=1)
    with pytest.raises(ValueError, match="repeats"):
        _native.LinearTimer(weight.data, WeightType.Q4_0.value, 8, 32, num_copies=1, num_threads=1).measure(
            1, 0
        )
