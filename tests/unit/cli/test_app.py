"""The frame: help, version, exit codes, and errors in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

import octavo
from octavo.cli import terminal
from octavo.cli.app import VERBS, error_line
from octavo.config import ConfigError
from octavo.params import ParameterError

Octavo = Callable[..., Result]


def test_the_version_is_the_packages(call: Octavo) -> None:
    assert call("--version").output == f"octavo {octavo.__version__}\n"


def test_help_names_every_verb_and_imports_none() -> None:
    script = (
        "import sys\nfrom octavo.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(*(name for name in ('numpy', 'rich', 'jinja2', 'octavo.cli.serve') if name in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    *help_text, imported = out.splitlines()
    for verb, text in VERBS.items():
        assert any(verb in line and text in line for line in help_text)
    assert imported == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(call: Octavo, verb: str) -> None:
    result = call(verb, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: main {verb}")


@pytest.mark.parametrize(
    "arguments",
    [["no-such-verb"], ["run"], ["serve", "--port", "x"], ["serve", "--kv-cache-memory", "5x"], ["inspect"]],
)
def test_wrong_usage_is_2(call: Octavo, arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


def test_a_users_mistake_is_one_line_and_1(call: Octavo) -> None:
    result = call("serve", "--num-blocks", "0")
    assert (result.exit_code, result.stderr) == (1, "octavo: num_blocks must be at least 1, got 0\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("must be odd", "block_size"), "block_size: must be odd"),
        (ConfigError("block_size must be odd", "block_size"), "block_size must be odd"),
        (ParameterError("too large", "top_k"), "top_k: too large"),
        (FileNotFoundError(2, "No such file", "a.gguf"), "a.gguf: No such file"),
        (ValueError("two\n  lines"), "two lines"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "internal error: KeyError: 'x' (OCTAVO_TRACEBACK=1 shows where)"),
    ],
)
def test_errors_become_one_line(error: Exception, line: str) -> None:
    assert error_line(error) == line


def test_a_traceback_is_there_for_those_who_ask(call: Octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: str, progress: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(terminal, "resolve", fail)
    result = call("pull", "x")
    assert result.exit_code == 1
    assert result.stderr == "octavo: internal error: RuntimeError: a bug (OCTAVO_TRACEBACK=1 shows where)\n"
    assert isinstance(call("pull", "x", env={"OCTAVO_TRACEBACK": "1"}).exception, RuntimeError)
