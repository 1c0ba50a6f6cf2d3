"""The layer check, on a small tree that breaks each rule once, and on the package as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_layers.py"


@pytest.fixture(scope="module")
def check_layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def offences(check_layers: ModuleType, tmp_path: Path, files: dict[str, str]) -> list[str]:
    for name, source in ({"config.py": "", "engine/core.py": "", "kernels/weights.py": ""} | files).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return [
        f"{o.path.relative_to(tmp_path)}:{o.line}: {o.message}" for o in check_layers.check_tree(tmp_path)
    ]


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("cache/a.py", "import os\nimport octavo.engine.core", "2: cache must not import octavo.engine.core"),
        ("cache/a.py", "from octavo.engine import core", "1: cache must not import octavo.engine.core"),
        ("cache/a.py", "from octavo import engine", "1: cache must not import octavo.engine"),
        ("cache/a.py", "from ..engine import core", "1: cache must not import octavo.engine.core"),
        ("cache/a.py", "import numpy as np", "1: cache holds ids only and must not import numpy"),
        ("scheduler/a.py", "from numpy import x", "1: scheduler holds ids only and must not import numpy"),
        (
            "runner/a.py",
            "def f():\n    from octavo.engine.core import g",
            "2: runner must not import octavo.engine.core",
        ),
        ("kernels/a.py", "from octavo.config import x", "1: kernels must not import octavo.config"),
        ("formats/a.py", "from octavo.kernels import ops", "1: formats must not import octavo.kernels"),
        ("text/a.py", "from octavo import LLM", "1: text must not import octavo"),
        ("config.py", "from octavo.engine.core import x", "1: config must not import octavo.engine.core"),
        (
            "common/a.py",
            "",
            "1: common has no place in the import order; give it one in check_layers.py",
        ),
        ("text/a.py", "\n" * 401, "401: the file has 401 lines, at most 400 may stand"),
        ("text/a.py", "def f():\n" + "    x\n" * 60, "1: f has 61 lines, at most 60 may stand"),
    ],
)
def test_an_offence_is_found(
    check_layers: ModuleType, tmp_path: Path, name: str, source: str, message: str
) -> None:
    assert offences(check_layers, tmp_path, {name: source}) == [f"{name}:{message}"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "engine/a.py",
            "import numpy\nfrom octavo.cache import x\nfrom octavo.config import y\nfrom . import core",
        ),
        ("scheduler/a.py", "from octavo.cache.block_pool import x"),
        ("formats/a.py", "from octavo.kernels.weights import Weight"),
        ("formats/a.py", "from octavo.kernels import weights"),
        ("kernels/a.py", "from octavo import _native\nimport octavo._native"),
        ("config.py", "from octavo.params import x"),
        ("cli/a.py", "from octavo import LLM"),
        ("text/a.py", "\n" * 400 + "x"),
        ("text/a.py", "def f():\n" + "    x\n" * 59),
    ],
)
def test_what_is_allowed_passes(check_layers: ModuleType, tmp_path: Path, name: str, source: str) -> None:
    assert offences(check_layers, tmp_path, {name: source}) == []


def test_the_exit_code_tells(
    check_layers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_layers.main([str(tmp_path)]) == 0
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "a.py").write_text("import numpy")
    assert check_layers.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{tmp_path}/cache/a.py:1: ")
