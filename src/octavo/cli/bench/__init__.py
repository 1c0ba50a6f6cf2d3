"""`octavo bench`: speed, measured in a way that others can repeat. One file a measurement."""

from __future__ import annotations

import click

from octavo.cli.app import VerbGroup

VERBS = {
    "throughput": "Answer a batch of prompts offline.",
    "latency": "Answer single prompts, one after the other.",
    "serve": "Put a server under load.",
    "kernels": "Measure this machine's limits, and each kernel as a share of them.",
    "random-model": "Write a model with random weights, for its speed.",
}


@click.group(cls=VerbGroup, verbs=VERBS, package=__name__)
def bench() -> None:
    """Measure speed."""
