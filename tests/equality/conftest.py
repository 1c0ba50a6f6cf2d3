"""Equality holds for float weights and for quantised ones, whose kernels are others."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.kernels.weights import WeightType
from support.toy import write_toy_gguf


@pytest.fixture(scope="package", params=[WeightType.F32, WeightType.Q4_1], ids=lambda t: t.name)
def toy_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    weight_type: WeightType = request.param
    path = tmp_path_factory.mktemp("toy") / f"{weight_type.name}.gguf"
    return write_toy_gguf(path, weight_type=weight_type)
