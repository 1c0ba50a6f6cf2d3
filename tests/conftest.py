"""What all tests share: the real model's path, and the mark of the tests that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.formats.sources import resolve
from support.toy import write_toy_gguf


@pytest.fixture(scope="session")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama-shaped model in a file, small enough to answer in milliseconds."""
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The weights that tests marked `model` run on; fetched once into the user's cache folder."""
    return resolve("smollm2-135m")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses the weights is marked `model`, so that `-m "not model"` needs no network."""
    for item in items:
        if "smollm2_path" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
