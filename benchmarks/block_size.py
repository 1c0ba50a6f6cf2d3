"""The block-size study: what blocks of 8 to 128 tokens cost and bring, on two workloads.

    python benchmarks/block_size.py                      print the table
    python benchmarks/block_size.py --write              and write docs/block-size.md with its plot

Workloads: short chats (48 requests of 8 to 120 tokens in, 16 to 48 out) and long shared prefixes (32 requests
that have one of four prefixes of about 700 tokens in common, and 32 tokens of their own, 32 out). Sizes are
measured in turn, several rounds, and medians are reported.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo import LLM, SamplingParams
from octavo.bench.kernels import measure_attention
from octavo.bench.machine import describe_machine, measure_limits
from octavo.bench.offline import random_tokens
from octavo.bench.plots import plot_lines
from octavo.cli.bench.tables import print_table

BLOCK_SIZES = (8, 16, 32, 64, 128)
DOCS = Path(__file__).parents[1] / "docs"
POOL_BYTES = 1 << 30
ATTENTION_CONTEXT = 2048
ATTENTION_SEQS = 8


@dataclass(frozen=True, slots=True)
class Request:
    prompt: tuple[int, ...]
    output_len: int

    @property
    def num_tokens(self) -> int:
        """Slots it needs in the end: the last token is never stored."""
        return len(self.prompt) + self.output_len - 1


def short_chats(llm: LLM, seed: int) -> list[Request]:
    source = random.Random(seed)
    return [
        Request(tuple(random_tokens(llm, source.randint(8, 120), (seed, index))), source.randint(16, 48))
        for index in range(48)
    ]


def long_prefixes(llm: LLM, seed: int) -> list[Request]:
    """Prefix lengths that are multiples of no block size: what is shared rarely ends with a block."""
    prefixes = [random_tokens(llm, 691 + 7 * index, (seed, "prefix", index)) for index in range(4)]
    return [
        Request((*prefixes[index % 4], *random_tokens(llm, 32, (seed, index))), 32) for index in range(32)
    ]


WORKLOADS: dict[str, Callable[[LLM, int], list[Request]]] = {
    "short chats": short_chats,
    "long shared prefixes": long_prefixes,
}


def padding_share(requests: Sequence[Request], block_size: int) -> float:
    """Share of the slots of all tables that hold nothing in the end, as if nothing were shared."""
    tokens = sum(request.num_tokens for request in requests)
    slots = sum(-(-request.num_tokens // block_size) * block_size for request in requests)
    return 1 - tokens / slots


def table_bytes(requests: Sequence[Request], block_size: int) -> float:
    """Of an average block table: 4 bytes an entry."""
    return statistics.fmean(4 * -(-request.num_tokens // block_size) for request in requests)


def throughput(llm: LLM, requests: Sequence[Request]) -> tuple[float, float]:
    """Output tokens a second, and the share of prompt tokens that the prefix cache gave."""
    params = [SamplingParams(temperature=0, max_tokens=r.output_len, ignore_eos=True) for r in requests]
    started = time.perf_counter()
    outputs = llm.generate([list(request.prompt) for request in requests], params, use_tqdm=False)
    seconds = time.perf_counter() - started
    cached = sum(output.num_cached_tokens for output in outputs)
    num_prompt_tokens = sum(len(request.prompt) for request in requests)
    return sum(request.output_len for request in requests) / seconds, cached / num_prompt_tokens


def measure(model: str, rounds: int) -> list[dict[str, object]]:
    """A row a workload and block size."""
    limits = measure_limits()
    llms = {
        size: LLM(model, block_size=size, kv_cache_memory=POOL_BYTES, max_num_seqs=16) for size in BLOCK_SIZES
    }
    runs: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for seed in range(rounds + 1):
        for name, make in WORKLOADS.items():
            for size, llm in llms.items():
                run = throughput(llm, make(llm, seed))
                if seed > 0:  # the first round warms up
                    runs.setdefault((name, size), []).append(run)
    attention: dict[int, list[float]] = {size: [] for size in BLOCK_SIZES}
    for _ in range(rounds):
        for size in BLOCK_SIZES:
            result = measure_attention(
                limits, context_len=ATTENTION_CONTEXT, num_seqs=ATTENTION_SEQS, block_size=size
            )
            attention[size].append(result.scattered_seconds)
    rows = []
    for (name, size), own in runs.items():
        requests = WORKLOADS[name](llms[size], 1)
        rows.append(
            {
                "workload": name,
                "block_size": size,
                "output_tokens_per_second": statistics.median(rate for rate, _ in own),
                "cached_share": statistics.median(share for _, share in own),
                "padding_share": padding_share(requests, size),
                "table_bytes": table_bytes(requests, size),
                "attention_us": statistics.median(attention[size]) * 1e6,
            }
        )
    return sorted(rows, key=lambda row: (list(WORKLOADS).index(row["workload"]), row["block_size"]))


COLUMNS = {
    "workload": ("workload", "{}"),
    "block_size": ("block", "{}"),
    "output_tokens_per_second": ("output tok/s", "{:.1f}"),
    "cached_share": ("prompt tokens from the cache", "{:.1%}"),
    "padding_share": ("padding", "{:.1%}"),
    "table_bytes": ("bytes a table", "{:.0f}"),
    "attention_us": ("attention, µs a layer", "{:.0f}"),
}


def cells(row: dict[str, object]) -> list[str]:
    return [form.format(row[key]) for key, (_, form) in COLUMNS.items()]


def write_docs(rows: list[dict[str, object]], folder: Path) -> None:
    """Put the table between the marks of docs/block-size.md, and draw the plot beside it."""
    path = folder / "block-size.md"
    titles = [title for title, _ in COLUMNS.values()]
    table = [f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]
    table += [f"| {' | '.join(cells(row))} |" for row in rows]
    machine = describe_machine()
    note = f"{time.strftime('%Y-%m-%d')}, {machine['cpu']}, {machine['threads']} threads, {machine['isa']}."
    before, _, rest = path.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of table -->\n")
    body = "\n".join([note, "", *table])
    path.write_text(f"{before}<!-- table -->\n{body}\n<!-- end of table -->\n{after}", encoding="utf-8")
    panels = {
        title: {
            name: [float(str(row[key])) * factor for row in rows if row["workload"] == name]
            for name in WORKLOADS
        }
        for key, title, factor in (
            ("output_tokens_per_second", "output tok/s", 1),
            ("padding_share", "padding, %", 100),
            ("cached_share", "prompt tokens from the cache, %", 100),
            ("table_bytes", "bytes a table", 1),
            ("attention_us", "attention, µs a layer", 1),
        )
    }
    plot_lines(folder / "block-size.png", BLOCK_SIZES, panels, "tokens in a block")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/block-size.md and its plot")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args()
    rows = measure(options.model, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print_table("block sizes", [title for title, _ in COLUMNS.values()], [cells(row) for row in rows])
    if options.write:
        write_docs(rows, DOCS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
