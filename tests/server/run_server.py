"""A server process with a scripted engine. Arguments: port, drain seconds, pause before each token."""

from __future__ import annotations

import sys

from octavo.server.serve import serve
from server.fake_engine import FakeEngine, say


class DyingEngine(FakeEngine):
    """Dies when asked for the word."""

    async def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        if text == "die":
            self.is_healthy = False
        return await super().encode(text)


def main() -> int:
    port, drain_seconds, pause = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    engine = DyingEngine(script=lambda prompt, params: say("x" * 10), pause=pause)
    try:
        return serve(
            engine,
            "127.0.0.1",
            port,
            drain_seconds=drain_seconds,
            on_ready=lambda address: print(address, flush=True),
        )
    finally:
        print("closed" if engine.is_closed else "left open", flush=True)


if __name__ == "__main__":
    sys.exit(main())
