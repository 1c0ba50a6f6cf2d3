"""Logging of the server process: `octavo` and uvicorn's warnings, to stderr; never the root logger."""

from __future__ import annotations

import logging.config

LEVELS = ("debug", "info", "warning", "error", "critical")


def configure_logging(level: str) -> None:
    logger = {"handlers": ["stderr"], "propagate": False}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "loggers": {
                "octavo": logger | {"level": level.upper()},
                "uvicorn": logger | {"level": "WARNING"},
            },
        }
    )
