"""`octavo inspect FILE`: what a model file holds, and what its KV cache costs."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import json_option
from octavo.cli.terminal import fetch, print_fields, print_json, size_text
from octavo.config import BLOCK_SIZES

if TYPE_CHECKING:
    from octavo.formats.gguf import GGUFFile
    from octavo.models.config import ModelConfig

KV_DTYPES = ("float16", "float32")
BLOCK_SIZE = click.Choice([str(size) for size in BLOCK_SIZES])


@click.command()
@click.argument("file")
@click.option("--block-size", type=BLOCK_SIZE, default="16", show_default=True, help="Tokens in a block.")
@json_option
def inspect(file: str, block_size: str, as_json: bool) -> None:
    """Show architecture, shapes, weight types and KV bytes of FILE, a path or any model name.

    Works on files that octavo cannot run, and says why it cannot.
    """
    from octavo.formats.gguf import open_gguf

    opened = open_gguf(fetch(file))
    report = describe(opened, int(block_size))
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def describe(file: GGUFFile, block_size: int) -> dict[str, Any]:
    """The report as plain data. `problem` says why octavo cannot run the file; None if it can.

    `shapes` and `kv_cache` are None where the metadata do not give them.
    """
    from octavo.models.config import ModelConfig, ModelError

    try:
        config = ModelConfig.from_gguf(file.metadata)
    except ModelError:
        config = None
    return {
        "file": str(file.path),
        "file_bytes": file.path.stat().st_size,
        "gguf_version": file.version,
        "architecture": file.metadata.get("general.architecture"),
        "name": file.metadata.get("general.name"),
        "num_parameters": sum(_num_elements(tensor.shape) for tensor in file.tensors.values()),
        "shapes": dataclasses.asdict(config) if config else None,
        "types": _types(file),
        "kv_cache": _kv_cache(config, block_size) if config else None,
        "problem": _problem(file),
    }


def _num_elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _types(file: GGUFFile) -> dict[str, dict[str, Any]]:
    """Element type → tensors and bytes of it, and whether octavo computes with it. Largest first."""
    from octavo.models.loader import SUPPORTED_TYPES

    counts: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for tensor in file.tensors.values():
        counts[tensor.type_name] += 1
        sizes[tensor.type_name] += tensor.num_bytes
    return {
        name: {"num_tensors": counts[name], "num_bytes": sizes[name], "is_supported": name in SUPPORTED_TYPES}
        for name in sorted(sizes, key=lambda name: -sizes[name])
    }


def _kv_cache(config: ModelConfig, block_size: int) -> dict[str, Any]:
    from octavo.kernels.kv_layout import KVLayout

    costs = {}
    for dtype in KV_DTYPES:
        layout = KVLayout(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            num_blocks=1,
            dtype=dtype,
        )
        costs[dtype] = {
            "bytes_per_token": layout.bytes_per_token,
            "bytes_per_block": layout.bytes_per_block,
            "bytes_per_full_context": layout.bytes_per_token * config.context_len,
        }
    return {"block_size": block_size, **costs}


def _problem(file: GGUFFile) -> str | None:
    from octavo.models.loader import load_model
    from octavo.text.tokenizer import Tokenizer

    try:
        load_model(file.path)
        Tokenizer.from_gguf(file.metadata)
    except ValueError as error:
        return str(error)
    return None


def _print_report(report: dict[str, Any]) -> None:
    print_fields(
        {
            "file": f"{report['file']} ({size_text(report['file_bytes'])}, GGUF {report['gguf_version']})",
            "architecture": report["architecture"],
            "name": report["name"],
            "parameters": f"{report['num_parameters']:,}",
        }
    )
    if report["shapes"]:
        click.echo("\nshapes")
        shapes = {f"  {name}": value for name, value in report["shapes"].items()}
        print_fields(
            {name: value for name, value in shapes.items() if name.strip() not in ("architecture", "name")}
        )
    click.echo("\nweights")
    print_fields({f"  {name}": _type_line(entry) for name, entry in report["types"].items()})
    if report["kv_cache"]:
        click.echo(f"\nKV cache, blocks of {report['kv_cache']['block_size']} tokens")
        print_fields({f"  {dtype}": _kv_line(report["kv_cache"][dtype]) for dtype in KV_DTYPES})
    click.echo(f"\noctavo cannot run it: {report['problem']}" if report["problem"] else "\noctavo can run it")


def _type_line(entry: dict[str, Any]) -> str:
    note = "" if entry["is_supported"] else " (octavo does not compute with it)"
    return f"{entry['num_tensors']} tensors, {size_text(entry['num_bytes'])}{note}"


def _kv_line(costs: dict[str, int]) -> str:
    return (
        f"{costs['bytes_per_token']:,} bytes a token, {costs['bytes_per_block']:,} a block, "
        f"{size_text(costs['bytes_per_full_context'])} a full context"
    )
