"""The engines, each in a process of its own that is stopped while another is measured."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scenarios import Job

from octavo.bench.client import Client, ClientError, first_model
from octavo.bench.load import run_load
from octavo.bench.workloads import Session, Turn

FOLDER = Path(__file__).parent
SETTLE_SECONDS = 5
"""After its start, for what an engine still does in the background."""


class EngineError(RuntimeError):
    """An engine that does not start, or fails in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to run an engine: a script, and the package that its environment must have."""

    script: str
    package: str
    venv: str | None
    """Name of its folder below .venvs; None: the environment that run.py itself runs in."""


KINDS = {
    "octavo": Kind(script="octavo_batch.py", package="octavo", venv=None),
    "octavo-serve": Kind(script="octavo_server.py", package="octavo", venv=None),
    "llama.cpp": Kind(script="llama_cpp_server.py", package="xllamacpp", venv="llamacpp"),
    "openvino": Kind(script="openvino_genai_batch.py", package="openvino_genai", venv="openvino"),
    "vllm": Kind(script="vllm_cpu_batch.py", package="vllm", venv="vllm"),
}


def python_of(kind: str, venvs: dict[str, Path]) -> Path | None:
    """The interpreter for an engine; None where its environment or package is missing."""
    spec = KINDS[kind]
    if spec.venv is None:
        return Path(sys.executable)
    python = venvs.get(kind, FOLDER / ".venvs" / spec.venv) / "bin" / "python"
    if not python.exists():
        return None
    check = f"import importlib.util as u, sys; sys.exit(u.find_spec({spec.package!r}) is None)"
    return python if subprocess.run([python, "-c", check], check=False).returncode == 0 else None


class Engine:
    """One running engine. Paused unless it runs a job. Raises EngineError."""

    def __init__(self, name: str, kind: str, python: Path, model: str, log: Path) -> None:
        self.name = name
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, FOLDER / KINDS[kind].script, model],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # a group of its own, so that all its processes can be stopped
            )
        self._log = log
        try:
            ready = self._read()
            self.start_seconds = float(ready["seconds"])
            self._url: str | None = ready.get("url")
            self._model_name = asyncio.run(first_model(self._url)) if self._url else ""
        except (ClientError, EngineError) as error:
            self.close()
            raise EngineError(str(error)) from None
        time.sleep(SETTLE_SECONDS)
        self._signal(signal.SIGSTOP)

    def run(self, job: Job) -> float:
        """Seconds from the first request to the last token."""
        self._signal(signal.SIGCONT)
        try:
            return self._load(self._url, job) if self._url else self._ask(job)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _ask(self, job: Job) -> float:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and reading will say so
            self._process.stdin.write(json.dumps(asdict(job)) + "\n")
            self._process.stdin.flush()
        return float(self._read()["seconds"])

    def _load(self, url: str, job: Job) -> float:
        sessions = [Session((Turn(prompt, job.output_len),)) for prompt in job.prompts]
        client = Client(url, self._model_name)
        result = asyncio.run(run_load(client, sessions, max_concurrency=job.max_concurrency))
        for answer in result.answers:
            if answer.error is not None:
                raise EngineError(f"{self.name}: {answer.error}")
            if answer.output_len != job.output_len:
                raise EngineError(f"{self.name}: {answer.output_len} tokens, not {job.output_len}")
        return result.seconds

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"{self.name} ended; see {self._log}")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
            time.sleep(0.01)
