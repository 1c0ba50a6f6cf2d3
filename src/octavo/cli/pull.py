"""`octavo pull NAME`: fetch a model before it is needed."""

from __future__ import annotations

import click

from octavo.cli.options import json_option
from octavo.cli.terminal import fetch, print_json


@click.command()
@click.argument("name")
@json_option
def pull(name: str, as_json: bool) -> None:
    """Fetch model NAME into the cache and print the path of its file."""
    path = fetch(name)
    if as_json:
        print_json({"model": name, "path": str(path), "num_bytes": path.stat().st_size})
    else:
        click.echo(path)
