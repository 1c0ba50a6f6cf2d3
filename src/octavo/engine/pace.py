"""How many rounds a step may take, so that no token is old when its reader gets it."""

from __future__ import annotations

import math

MAX_ROUNDS = 8
"""Python's share of a step is paid once for them; with more there is nothing left to save."""

PATIENCE = 0.016
"""Seconds that a token may wait for those after it, where somebody watches: a frame of a screen. A new
request may have to wait as long for the step to end."""


class Pace:
    """Knows how long a round took last time."""

    def __init__(self) -> None:
        self._round_seconds = math.inf

    def max_rounds(self, patience: float) -> int:
        """As many as fit into `patience` seconds, and one if none does."""
        if patience == math.inf:
            return MAX_ROUNDS
        return max(1, min(MAX_ROUNDS, int(patience / self._round_seconds)))

    def on_step(self, seconds: float, num_rounds: int) -> None:
        self._round_seconds = max(seconds, 1e-6) / num_rounds
