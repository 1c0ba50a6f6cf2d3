"""From a model file to a program that executors can run. Weights stay views of the mapped file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.formats.gguf import GGUFFile, GGUFTensor, open_gguf
from octavo.kernels.ops import Program
from octavo.kernels.weights import Weight, WeightType
from octavo.models.config import ModelConfig, ModelError, read_architecture
from octavo.models.registry import find_family

SUPPORTED_TYPES = tuple(weight_type.name for weight_type in WeightType)
_NUM_SAMPLES = 8
_SAMPLE_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model that is ready to run."""

    path: Path
    config: ModelConfig
    program: Program
    metadata: Mapping[str, object]
    """All of the file's metadata, the tokenizer's included."""
    fingerprint: str
    """Equal for equal files, whatever their path; a namespace for cached K and V."""
    file: GGUFFile
    """Its tensors are what the program's weights look at."""


def load_model(path: str | Path) -> LoadedModel:
    """Open a GGUF file and build its program.

    Raises GGUFError for a file that is no valid GGUF, ModelError for a model that cannot be run (because of
    its architecture, metadata, tensors or weight types), OSError for a file that cannot be opened.
    """
    file = open_gguf(path)
    build = find_family(read_architecture(file.metadata))
    config = ModelConfig.from_gguf(file.metadata)
    _check_types(file.tensors.values())
    weights = {name: _weight(tensor) for name, tensor in file.tensors.items()}
    program = build(config, weights)
    unused = weights.keys() - program.weights.keys()
    if unused:  # what is left out would change the answers
        raise ModelError(
            f"family {config.architecture!r} has no use for {len(unused)} tensors, such as {min(unused)!r}"
        )
    return LoadedModel(file.path, config, program, file.metadata, fingerprint(file), file)


def fingerprint(file: GGUFFile) -> str:
    """32 hexadecimal digits from the metadata, the tensor table, and samples of each tensor's data.

    Samples, because hashing gigabytes would take longer than loading them; files that differ only between the
    samples, with equal metadata, are taken for the same.
    """
    digest = hashlib.blake2b(file.header.data, digest_size=16)
    for tensor in file.tensors.values():
        last = max(tensor.num_bytes - _SAMPLE_BYTES, 0)
        for index in range(_NUM_SAMPLES):
            start = last * index // (_NUM_SAMPLES - 1)
            digest.update(tensor.data[start : start + _SAMPLE_BYTES].data)
    return digest.hexdigest()


def _check_types(tensors: Iterable[GGUFTensor]) -> None:
    """Name every type that cannot be computed with, and one tensor of each."""
    unsupported = {t.type_name: t.name for t in tensors if t.type_name not in SUPPORTED_TYPES}
    if unsupported:
        examples = ", ".join(f"{type_name} (of {name!r})" for type_name, name in unsupported.items())
        raise ModelError(
            f"weight type {examples} is not supported; supported types: {', '.join(SUPPORTED_TYPES)}"
        )


def _weight(tensor: GGUFTensor) -> Weight:
    if len(tensor.shape) > 2:
        raise ModelError(f"tensor {tensor.name!r} has shape {tensor.shape}; only matrices are supported")
    rows, cols = (1, *tensor.shape)[-2:]
    return Weight(tensor.name, WeightType(tensor.type_id), rows, cols, tensor.data)
