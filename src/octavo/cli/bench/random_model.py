"""`octavo bench random-model`: the speed of a real model's shape, without the model."""

from __future__ import annotations

import click

from octavo.cli.options import json_option
from octavo.cli.terminal import print_json

TYPES = ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32")


@click.command("random-model")
@click.argument("shape", default="1.1b")
@click.option("--type", "weight_type", type=click.Choice(TYPES), default="Q4_0", show_default=True)
@json_option
def random_model(shape: str, weight_type: str, as_json: bool) -> None:
    """Write a llama of SHAPE with random weights into the cache folder, and print its path.

    What it answers means nothing; how fast it answers does.
    """
    from octavo.bench.random_model import SHAPES
    from octavo.bench.random_model import random_model as write
    from octavo.kernels.weights import WeightType

    if shape not in SHAPES:
        raise click.BadParameter(f"{shape!r} is unknown; known: {', '.join(SHAPES)}", param_hint="SHAPE")
    path = write(shape, WeightType[weight_type])
    if as_json:
        print_json({"path": str(path), "num_bytes": path.stat().st_size})
    else:
        click.echo(path)
