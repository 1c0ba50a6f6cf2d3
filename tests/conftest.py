"""What all tests share: the real model's path, and the mark of the tests that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.formats.sources import resolve


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The weights that tests marked `model` run on; fetched once into the user's cache folder."""
    return resolve("smollm2-135m")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses the weights is marked `model`, so that `-m "not model"` needs no network."""
    for item in items:
        if "smollm2_path" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
