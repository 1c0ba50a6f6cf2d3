"""`octavo serve [MODEL]`: an OpenAI server."""

from __future__ import annotations

from typing import Any

import click

from octavo.cli.logs import LEVELS, configure_logging
from octavo.cli.options import engine_options, env_option, given
from octavo.cli.terminal import fetch
from octavo.config import DEFAULT_MODEL, EngineConfig


@click.command()
@click.argument("model", default=DEFAULT_MODEL, envvar="OCTAVO_MODEL")
@env_option("--host", default="127.0.0.1", help="Address to listen on.")
@env_option(
    "--port", default=8000, type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one."
)
@env_option("--api-key", help="Key that clients must send.")
@env_option("--served-model-name", help="Name of the model in the API; by default MODEL.")
@env_option(
    "--drain-seconds",
    default=30.0,
    type=click.FloatRange(min=0),
    help="On SIGTERM, how long running requests may go on.",
)
@env_option("--log-level", default="info", type=click.Choice(LEVELS), help="Log nothing below this level.")
@engine_options
def serve(
    model: str,
    host: str,
    port: int,
    api_key: str | None,
    served_model_name: str | None,
    drain_seconds: float,
    log_level: str,
    **options: Any,
) -> None:
    """Serve MODEL to OpenAI clients. By default SmolLM2-135M-Instruct, which is fetched once."""
    configure_logging(log_level)
    config = EngineConfig.from_options(model, **given(options))
    fetch(model)
    from octavo.engine.async_llm import AsyncLLM
    from octavo.server.serve import serve as serve_engine

    engine = AsyncLLM(config, served_model_name)
    click.echo(f"octavo serves {engine.model_name}")
    for line in engine.plan.lines():
        click.echo(f"  {line}")
    code = serve_engine(
        engine,
        host,
        port,
        api_key=api_key,
        drain_seconds=drain_seconds,
        on_ready=lambda address: click.echo(f"listening on {address}/v1"),
    )
    click.get_current_context().exit(code)
