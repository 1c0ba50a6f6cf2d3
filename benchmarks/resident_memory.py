"""How much memory a server takes beyond its weights and its KV pool, while it serves many streams.

    python benchmarks/resident_memory.py [MODEL] [--streams 32] [--input-len 100] [--output-len 64]

The pool has exactly the blocks that the streams fill, so that all of it is touched. Linux only: reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
from pathlib import Path

from octavo.bench.client import Client
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


async def serve_streams(url: str, pid: int, num_streams: int, input_len: int, output_len: int) -> int:
    """The most resident memory that was seen, in bytes, looked at every 20 ms."""
    source = random.Random(0)
    client = Client(url, "model")
    prompts = [source.choices(range(1000, 40_000), k=input_len) for _ in range(num_streams)]
    answers = asyncio.gather(*(client.complete(prompt, output_len) for prompt in prompts))
    most = resident_bytes(pid)
    while not answers.done():
        await asyncio.sleep(0.02)
        most = max(most, resident_bytes(pid))
    for answer in await answers:
        if answer.error is not None:
            raise ValueError(f"a request failed: {answer.error}")
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    for name, default in (("streams", 32), ("input-len", 100), ("output-len", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()

    cache = CacheConfig(num_blocks=1)
    model = load_model(resolve(options.model))
    one_block = plan_layout(
        model.program, model.config.context_len, cache, SchedulerConfig(), free_bytes=1 << 62
    ).num_bytes
    num_blocks = options.streams * -(-(options.input_len + options.output_len) // cache.block_size)
    flags = ["--port", "0", "--log-level", "error", "--num-blocks", str(num_blocks), "--watermark", "0"]
    command = [sys.executable, "-m", "octavo", "serve", options.model, *flags, "--served-model-name", "model"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = (line for line in server.stdout if line.startswith("listening on "))
        url = next(lines).removeprefix("listening on ").strip()
        idle = resident_bytes(server.pid)
        most = asyncio.run(
            serve_streams(url, server.pid, options.streams, options.input_len, options.output_len)
        )
    finally:
        server.terminate()
        server.wait()
    weights, pool = model.program.weight_bytes, num_blocks * one_block
    for name, num_bytes in {
        "resident, idle": idle,
        f"resident, {options.streams} streams": most,
        "weights": weights,
        "KV pool": pool,
        "beyond both": most - weights - pool,
    }.items():
        print(f"{name:24} {num_bytes / MIB:8.1f} MiB")


if __name__ == "__main__":
    main()
