"""How much memory a server takes beyond its weights and its KV pool, while it serves many streams.

    python benchmarks/resident_memory.py [MODEL] [--streams 32] [--input-len 100] [--output-len 64]

The pool has exactly the blocks that the streams fill, so that all of it is touched. Linux only: reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.client import Client
from octavo.bench.own_server import OwnServer, own_server
from octavo.config import DEFAULT_MODEL, CacheConfig, SchedulerConfig
from octavo.formats.sources import resolve
from octavo.models.loader import load_model
from octavo.runner.kv_storage import plan_layout

MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} shows no VmRSS")


async def serve_streams(server: OwnServer, num_streams: int, input_len: int, output_len: int) -> int:
    """The most resident memory that was seen, in bytes, looked at every 20 ms."""
    source = random.Random(0)
    client = Client(server.url, "model")
    prompts = [source.choices(range(1000, 40_000), k=input_len) for _ in range(num_streams)]
    answers = asyncio.gather(*(client.complete(prompt, output_len) for prompt in prompts))
    most = resident_bytes(server.process_id)
    while not answers.done():
        await asyncio.sleep(0.02)
        most = max(most, resident_bytes(server.process_id))
    for answer in await answers:
        if answer.error is not None:
            raise ValueError(f"a request failed: {answer.error}")
    return most


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """In bytes."""

    idle: int
    most: int
    weights: int
    pool: int

    @property
    def beyond(self) -> int:
        return self.most - self.weights - self.pool


def measure(model: str, *, num_streams: int = 32, input_len: int = 100, output_len: int = 64) -> Resident:
    cache = CacheConfig(num_blocks=1)
    loaded = load_model(resolve(model))
    one_block = plan_layout(
        loaded.program, loaded.config.context_len, cache, SchedulerConfig(), free_bytes=1 << 62
    ).num_bytes
    num_blocks = num_streams * -(-(input_len + output_len) // cache.block_size)
    flags = ["--num-blocks", str(num_blocks), "--watermark", "0", "--served-model-name", "model"]
    with own_server(model, flags) as server:
        idle = resident_bytes(server.process_id)
        most = asyncio.run(serve_streams(server, num_streams, input_len, output_len))
    return Resident(idle=idle, most=most, weights=loaded.program.weight_bytes, pool=num_blocks * one_block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    for name, default in (("streams", 32), ("input-len", 100), ("output-len", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    resident = measure(
        options.model,
        num_streams=options.streams,
        input_len=options.input_len,
        output_len=options.output_len,
    )
    for name, num_bytes in {
        "resident, idle": resident.idle,
        f"resident, {options.streams} streams": resident.most,
        "weights": resident.weights,
        "KV pool": resident.pool,
        "beyond both": resident.beyond,
    }.items():
        print(f"{name:24} {num_bytes / MIB:8.1f} MiB")


if __name__ == "__main__":
    main()
