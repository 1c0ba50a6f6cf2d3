"""Why the engine takes no request, or ends one."""

from __future__ import annotations


class EngineError(RuntimeError):
    """The engine cannot do what was asked, through no fault of the client."""


class EngineDeadError(EngineError):
    """The engine has stopped after an error that it could not contain."""


class EngineDrainingError(EngineError):
    """The engine is shutting down: it finishes what runs and takes nothing new."""
