"""The command line: one file a verb."""

from octavo.cli.app import main

__all__ = ["main"]
