"""The native executor on toy models: against the reference, and the same bits however the work is cut."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import kernels
from octavo.batch import BlockCopy, ScheduledSequence
from octavo.kernels.executor import StepInputs
from octavo.kernels.native import NativeExecutor
from octavo.kernels.ops import Add, Attention, Embed, KVWrite, Linear, Op, Program, RmsNorm, Rope, TakeRows
from octavo.kernels.reference import ReferenceExecutor
from octavo.kernels.weights import WeightType
from support.toy import step_inputs, toy_layout, toy_program, toy_sequence

Floats = npt.NDArray[np.float32]

BLOCK_SIZES = (4, 8, 16, 32, 64, 128)
NUM_SLOTS = 640
every_isa = pytest.mark.parametrize("isa", kernels.info()["available_isas"])
every_type = pytest.mark.parametrize("weight_type", list(WeightType), ids=lambda t: t.name)
every_kv_dtype = pytest.mark.parametrize("kv_dtype", ["float16", "float32"])


def native(
    program: Program, block_size: int = 16, *, dtype: str = "float16", **options: Any
) -> NativeExecutor:
    """With a pool of NUM_SLOTS slots that holds garbage."""
    layout = toy_layout(program, block_size=block_size, num_blocks=NUM_SLOTS // block_size, dtype=dtype)
    executor = NativeExecutor(program, layout, **{"num_threads": 2, "max_num_tokens": 256, **options})
    executor.kv[...] = np.nan
    return executor


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 512, count)]


class Prompt:
    """A prompt and its scattered blocks; `share` is what one step computes of it."""

    def __init__(self, length: int, seed: int, block_size: int, blocks: list[int]) -> None:
        self.tokens = tokens(length, seed)
        self.table = [blocks.pop() for _ in range(-(-length // block_size))]

    def share(self, start: int, end: int) -> ScheduledSequence:
        return toy_sequence(self.tokens[start:end], self.table, start=start)


def sequences(lengths: Iterable[int], block_size: int) -> list[Prompt]:
    blocks = np.random.default_rng(3).permutation(NUM_SLOTS // block_size).tolist()
    return [Prompt(length, seed, block_size, blocks) for seed, length in enumerate(lengths)]


# --- against the reference ---


class QuantizingReference(ReferenceExecutor):
    """The reference, with the inputs of quantised linears rounded to int8 in groups of 32."""

    def _apply(self, op: Op, buffers: dict[str, Any], inputs: StepInputs) -> None:
        if not isinstance(op, Linear) or self._program.weights[op.weight].type.group_size == 1:
            super()._apply(op, buffers, inputs)
            return
        exact = buffers[op.x]
        groups = exact.reshape(len(exact), -1, 32)
        units = np.abs(exact).max(axis=1)[:, None, None] / (127 * 32767)
        units[units == 0] = 1
        scales = units * np.ceil(np.abs(groups).max(axis=2, keepdims=True) / (127 * units)).clip(max=32767)
        rounded = np.rint(groups / np.where(scales == 0, 1, scales)) * scales
        buffers[op.x] = rounded.reshape(exact.shape)
        super()._apply(op, buffers, inputs)
        buffers[op.x] = exact


def mixed_steps(block_size: int) -> Iterable[StepInputs]:
    """Prefill of three, then one joins while others decode or continue, then decode with a block copy."""
    a, b, c, d = sequences((21, 40, 2, 70), block_size)
    yield step_inputs([a.share(0, 20), b.share(0, 33), c.share(0, 1)], block_size=block_size)
    yield step_inputs(
        [a.share(20, 21), b.share(33, 39), d.share(0, 69)], block_size=block_size, all_rows=True
    )
    held = a.table + b.table + c.table + d.table
    spare = next(block for block in range(NUM_SLOTS // block_size) if block not in held)
    copied = BlockCopy(d.table[-1], spare)
    d.table[-1] = spare
    last = [s.share(len(s.tokens) - 1, len(s.tokens)) for s in (b, c, d)]
    yield step_inputs(last, block_size=block_size, copies=[copied])


@functools.cache
def reference_logits(weight_type: WeightType, kv_dtype: str) -> list[Floats]:
    """Of mixed_steps: they mean the same for every block size."""
    program = toy_program(weight_type=weight_type)
    layout = toy_layout(program, num_blocks=NUM_SLOTS // 16, dtype=kv_dtype)
    reference = QuantizingReference(program, layout, dtype=np.float64)
    return [reference.run(inputs) for inputs in mixed_steps(16)]


@every_isa
@every_type
@every_kv_dtype
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_agrees_with_the_reference(isa: str, weight_type: WeightType, kv_dtype: str, block_size: int) -> None:
    executor = native(toy_program(weight_type=weight_type), block_size, dtype=kv_dtype, isa=isa)
    # A rounding of K, V or an activation that falls the other way moves a logit by about its step.
    tolerance = 3e-2 if weight_type.group_size > 1 or kv_dtype == "float16" else 1e-5
    for inputs, expected in zip(
        mixed_steps(block_size), reference_logits(weight_type, kv_dtype), strict=True
    ):
        got = executor.run(inputs)
        assert got.shape == expected.shape
        assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()
        assert np.sqrt(np.mean((got - expected) ** 2)) <= tolerance / 10 * np.abs(expected).max()


@every_isa
@pytest.mark.parametrize(
    "shape",
    [
        {"num_heads": 8, "num_kv_heads": 8, "head_dim": 8},
        {"num_heads": 4, "num_kv_heads": 1, "head_dim": 24, "rotary_dim": 16},
        {"num_heads": 6, "num_kv_heads": 2, "head_dim": 80},
        {"biases": True, "tied": False, "rope_interleaved": False},
        {"vocab_size": 517, "hidden_size": 72, "intermediate_size": 100},
    ],
    ids=["mha", "mqa-partial-rotary", "gqa", "biases", "ragged"],
)
def test_agrees_for_every_shape(isa: str, shape: dict[str, Any]) -> None:
    program = toy_program(**shape)
    executor = native(program, dtype="float32", isa=isa)
    reference = ReferenceExecutor(
        program, toy_layout(program, num_blocks=NUM_SLOTS // 16, dtype="float32"), dtype=np.float64
    )
    for inputs in mixed_steps(16):
        expected = reference.run(inputs)
        np.testing.assert_allclose(executor.run(inputs), expected, atol=1e-5 * np.abs(expected).max())


# --- the same bits ---


def check_same_bits(one: NativeExecutor, other: NativeExecutor) -> None:
    for inputs in mixed_steps(16):
        logits = one.run(inputs)
        assert np.isfinite(logits).all()
        np.testing.assert_array_equal(logits, other.run(inputs))


def alone(program: Program, sequence: Prompt, block_size: int = 16, **options: Any) -> Floats:
    """Logits of all tokens, computed in one step by one thread with nobody else in the pool."""
    executor = native(program, block_size, **{"num_threads": 1, **options})
    return executor.run(
        step_inputs([sequence.share(0, len(sequence.tokens))], block_size=block_size, all_rows=True)
    ).copy()


@every_isa
@every_type
def test_alone_or_in_a_batch(isa: str, weight_type: WeightType) -> None:
    program = toy_program(weight_type=weight_type)
    batch = sequences((3, 1, 33, 17, 8, 64), 16)
    executor = native(program, isa=isa)
    logits = executor.run(step_inputs([s.share(0, len(s.tokens)) for s in batch], all_rows=True)).copy()
    ends = np.cumsum([len(s.tokens) for s in batch])
    for sequence, rows in zip(batch, np.split(logits, ends[:-1]), strict=True):
        np.testing.assert_array_equal(rows, alone(program, sequence, isa=isa))


@every_isa
@every_type
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_whole_or_in_chunks(isa: str, weight_type: WeightType, chunk: int) -> None:
    program = toy_program(weight_type=weight_type)
    (sequence,) = sequences((150,), 16)
    executor = native(program, isa=isa)
    rows = [
        executor.run(step_inputs([sequence.share(start, min(start + chunk, 150))], all_rows=True)).copy()
        for start in range(0, 150, chunk)
    ]
    np.testing.assert_array_equal(np.concatenate(rows), alone(program, sequence, isa=isa))


@every_isa
@every_kv_dtype
def test_any_block_size(isa: str, kv_dtype: str) -> None:
    program = toy_program(weight_type=WeightType.Q4_1)
    expected = None
    for block_size in BLOCK_SIZES:
        (sequence,) = sequences((150,), block_size)
        logits = alone(program, sequence, block_size, isa=isa, dtype=kv_dtype)
        expected = logits if expected is None else expected
        np.testing.assert_array_equal(logits, expected, err_msg=f"block size {block_size}")


@every_isa
@every_type
@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_any_number_of_threads(isa: str, weight_type: WeightType, num_threads: int) -> None:
    program = toy_program(weight_type=weight_type, biases=True)
    one = native(program, isa=isa, num_threads=1)
    team = native(program, isa=isa, num_threads=num_threads)
    check_same_bits(team, one)


@every_isa
@every_type
@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_a_lone_token_for_any_number_of_threads(isa: str, weight_type: WeightType, num_threads: int) -> None:
    program = toy_program(weight_type=weight_type, biases=True)
    (sequence,) = sequences((9,), 16)
    one = native(program, isa=isa, num_threads=1)
    team = native(program, isa=isa, num_threads=num_threads, max_num_tokens=1)
    for position in range(len(sequence.tokens)):
        inputs = step_inputs([sequence.share(position, position + 1)], block_size=16)
        np.testing.assert_array_equal(team.run(inputs), one.run(inputs))
        for best, expected in zip(team.run_best(inputs), one.run_best(inputs), strict=True):
            np.testing.assert_array_equal(best, expected)


@every_isa
def test_copied_blocks_hold_the_same_bits(isa: str) -> None:
    program = toy_program()
    executor = native(program, 4, isa=isa)
    (sequence,) = sequences((12,), 4)
    executor.run(step_inputs([sequence.share(0, 12)], block_size=4))
    free = [block for block in range(NUM_SLOTS // 4) if block not in sequence.table][:2]
    copies = [BlockCopy(sequence.table[0], free[0]), BlockCopy(free[0], free[1])]
    executor.run(step_inputs([], block_size=4, copies=copies))
    for block in free:
        np.testing.assert_array_equal(executor.kv[:, block], executor.kv[:, sequence.table[0]])


@every_isa
@pytest.mark.parametrize("weight_type", [WeightType.F32, WeightType.Q8_0], ids=lambda t: t.name)
def test_fused_or_op_by_op(isa: str, weight_type: WeightType) -> None:
    """Reading an output of a linear once more, to no effect, keeps it from being added in place."""
    program = toy_program(weight_type=weight_type)
    norm = next(name for name in program.weights if name.endswith("attn_norm.weight"))
    ops: list[Op] = []
    for op in program.ops:
        ops.append(op)
        if isinstance(op, Add):
            ops.append(RmsNorm(op.y, norm, "unused", 1e-5))
    separate = dataclasses.replace(program, ops=tuple(ops), buffers={**program.buffers, "unused": 64})
    check_same_bits(native(separate, isa=isa), native(program, isa=isa))


@every_isa
def test_a_matmul_that_adds_to_what_its_own_row_was_made_of(isa: str) -> None:
    """A thread that comes late must not make its row of sums that others have begun to write."""
    program = toy_program(weight_type=WeightType.Q4_1, hidden_size=256, num_heads=16, num_kv_heads=2)
    embed, *_, norm, head = program.ops
    block = (
        RmsNorm("x", "blk.0.attn_norm.weight", "normed", 1e-5),
        Linear("normed", "blk.0.attn_q.weight", "projected"),
        Add("x", "projected"),
    )
    program = dataclasses.replace(program, ops=(embed, *block * 40, TakeRows("x", "last"), norm, head))
    one, team = native(program, isa=isa, num_threads=1), native(program, isa=isa, num_threads=7)
    inputs = step_inputs([sequences((1,), 16)[0].share(0, 1)], block_size=16)
    expected = one.run(inputs).copy()
    for _ in range(20):
        np.testing.assert_array_equal(team.run(inputs), expected)


@every_isa
def test_an_output_that_is_read_twice_is_kept(isa: str) -> None:
    program = toy_program()
    twice = [again for op in program.ops for again in ([op, op] if isinstance(op, Add) else [op])]
    program = dataclasses.replace(program, ops=tuple(twice))
    layout = toy_layout(program, num_blocks=NUM_SLOTS // 16, dtype="float32")
    reference = ReferenceExecutor(program, layout, dtype=np.float64)
    executor = native(program, dtype="float32", isa=isa)
    for inputs in mixed_steps(16):
        expected = reference.run(inputs)
        np.testing.assert_allclose(executor.run(inputs), expected, atol=1e-5 * np.abs(expected).max())


@every_isa
def test_an_input_that_changes_is_quantised_again(isa: str) -> None:
    program = toy_program(weight_type=WeightType.Q8_0)
    reusing = {"attended": "normed"}  # written between two linears that read it
    ops = [
        dataclasses.replace(
            op, **{key: reusing.get(value, value) for key, value in dataclasses.asdict(op).items()}
        )
        for op in program.ops
    ]
    changed_program = dataclasses.replace(program, ops=tuple(ops))
    check_same_bits(native(changed_program, isa=isa), native(program, isa=isa))


# --- edges ---


@every_isa
def test_nothing_to_do(isa: str) -> None:
    executor = native(toy_program(), isa=isa)
    assert executor.run(step_inputs([])).shape == (0, 512)
    inputs = dataclasses.replace(step_inputs([toy_sequence([1, 2], [0])]), logits_rows=np.zeros(0, np.int32))
    assert executor.run(inputs).shape == (0, 512)


def test_memory_is_aligned_and_of_the_layout_s_shape() -> None:
    program = toy_program()
    executor = native(program, 8)
    assert executor.kv.ctypes.data % 64 == 0
    assert executor.kv.shape == (
        program.num_layers,
        NUM_SLOTS // 8,
        program.num_kv_heads,
        2,
        8 * program.head_dim,
    )
    assert executor.kv.dtype == np.float16


def test_logits_outlive_the_executor() -> None:
    program = toy_program()
    expected = native(program).run(step_inputs([toy_sequence([1], [0])])).copy()
    np.testing.assert_array_equal(native(program).run(step_inputs([toy_sequence([1], [0])])), expected)


def int32(values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


VALID = step_inputs([toy_sequence(tokens(6), [3]), toy_sequence(tokens(20), [5, 6], start=2)])
MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "token beyond the vocabulary": ("token_ids", {"token_ids": VALID.token_ids + 500}),
    "negative token": ("token_ids", {"token_ids": VALID.token_ids - 500}),
    "too few positions": ("positions", {"positions": VALID.positions[:-1]}),
    "positions with a gap": ("positions", {"positions": VALID.positions + 1}),
    "slot beyond the pool": ("slot_mapping", {"slot_mapping": VALID.slot_mapping + NUM_SLOTS}),
    "negative slot": ("slot_mapping", {"slot_mapping": VALID.slot_mapping - 100}),
    "slot twice": ("slot_mapping", {"slot_mapping": VALID.slot_mapping * 0}),
    "block beyond the pool": (r"block_tables\[0\]", {"block_tables": VALID.block_tables + 40}),
    "table too short": (
        r"context_lens\[1\]",
        {"block_tables": np.ascontiguousarray(VALID.block_tables[:, :1])},
    ),
    "table of too few sequences": ("block_tables", {"block_tables": VALID.block_tables[:1]}),
    "query_start that ends early": ("query_start", {"query_start": int32([0, 6, 25])}),
    "query_start that descends": ("query_start", {"query_start": int32([0, 30, 26])}),
    "query_start from 1": ("query_start", {"query_start": int32([1, 6, 26])}),
    "query_start too long": ("query_start", {"query_start": int32([0, 6, 26, 26])}),
    "context shorter than its tokens": (r"context_lens\[0\]", {"context_lens": int32([5, 22])}),
    "negative context": (r"context_lens\[0\]", {"context_lens": int32([-1, 22])}),
    "row beyond the tokens": ("logits_rows", {"logits_rows": int32([5, 26])}),
    "rows that do not ascend": ("logits_rows", {"logits_rows": int32([5, 5])}),
    "copy beyond the pool": ("copies", {"copies": int32([[0, 40]])}),
    "copies of three": ("copies", {"copies": int32([[0, 1, 2]])}),
    "wrong dtype": ("positions", {"positions": VALID.positions.astype(np.int64)}),
    "wrong number of axes": ("token_ids", {"token_ids": VALID.token_ids[None]}),
    "not contiguous": ("token_ids", {"token_ids": np.repeat(VALID.token_ids, 2)[::2]}),
}


@pytest.mark.parametrize(("name", "change"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_named_and_nothing_is_written(name: str, change: dict[str, Any]) -> None:
    executor = native(toy_program())
    with pytest.raises(ValueError, match=f"^{name}"):
        executor.run(dataclasses.replace(VALID, **change))
    assert np.isnan(executor.kv).all()
    assert executor.run(VALID).shape == (2, 512)


def test_more_tokens_than_there_is_room_for() -> None:
    with pytest.raises(ValueError, match="max_num_tokens 25"):
        native(toy_program(), max_num_tokens=25).run(VALID)


def changed(program: Program, kind: type[Op], **fields: Any) -> Program:
    """With the first op of a kind replaced."""
    index = next(i for i, op in enumerate(program.ops) if isinstance(op, kind))
    ops = list(program.ops)
    ops[index] = dataclasses.replace(ops[index], **fields)
    return dataclasses.replace(program, ops=tuple(ops))


def logits_of_all_tokens(program: Program) -> Program:
    head = program.ops[-1]
    assert isinstance(head, Linear)
    return dataclasses.replace(program, ops=(*program.ops[:-1], dataclasses.replace(head, x="x")))


BAD_PROGRAMS: dict[str, tuple[str, Callable[[Program], Program]]] = {
    "unknown weight": ("weight 'nope' is not given", lambda p: changed(p, Linear, weight="nope")),
    "unknown buffer": ("op 1: buffer 'nope' is not declared", lambda p: changed(p, RmsNorm, out="nope")),
    "read too early": ("op 1: buffer 'q' is read before", lambda p: changed(p, RmsNorm, x="q")),
    "wrong width": (
        "op 2: buffer 'gate' has width 128, expected 64",
        lambda p: changed(p, Linear, out="gate"),
    ),
    "layer beyond": ("layer 2 is beyond", lambda p: changed(p, KVWrite, layer=2)),
    "heads that do not divide": ("num_heads 5", lambda p: changed(p, Attention, num_heads=5)),
    "odd rotary_dim": ("rotary_dim 15", lambda p: changed(p, Rope, rotary_dim=15)),
    "attention in place": ("both input and output", lambda p: changed(p, Attention, out="q")),
    "logits of all tokens": ("after a TakeRows", logits_of_all_tokens),
    "vocabulary of another size": ("vocabulary", lambda p: dataclasses.replace(p, vocab_size=500)),
    "matrix as a vector": ("one row", lambda p: changed(p, RmsNorm, weight="token_embd.weight")),
    "vector as a table": ("vocabulary", lambda p: changed(p, Embed, weight="output_norm.weight")),
}


@pytest.mark.parametrize(("message", "change"), BAD_PROGRAMS.values(), ids=BAD_PROGRAMS.keys())
def test_programs_that_cannot_run(message: str, change: Callable[[Program], Program]) -> None:
    with pytest.raises(ValueError, match=message):
        native(change(toy_program()))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("num_threads", {"num_threads": 0}),
        ("max_num_tokens", {"max_num_tokens": 0}),
        ("isa 'sse9' is unknown; this machine has: portable", {"isa": "sse9"}),
    ],
)
def test_options_out_of_range(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        native(toy_program(), **options)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("block_size", {"block_size": 12}),
        ("num_blocks", {"num_blocks": 0}),
        ("dtype", {"dtype": "float8"}),
        ("layers", {"num_layers": 3}),
    ],
)
def test_layouts_that_do_not_fit(name: str, change: dict[str, Any]) -> None:
    program = toy_program()
    layout = dataclasses.replace(toy_layout(program), **change)
    with pytest.raises((ValueError, KeyError), match=name):
        NativeExecutor(program, layout, num_threads=1, max_num_tokens=1)


# --- threads and processes ---


def test_two_runs_at_once_are_refused() -> None:
    executor = native(toy_program())
    (sequence,) = sequences((200,), 16)
    inputs = step_inputs([sequence.share(0, 200)], all_rows=True)
    expected = executor.run(inputs).copy()
    refused, stop = threading.Event(), threading.Event()

    def keep_running() -> None:
        while not stop.is_set():
            try:
                executor.run(inputs)
            except RuntimeError:
                refused.set()

    threads = [threading.Thread(target=keep_running) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert refused.wait(timeout=60)
    stop.set()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(executor.run(inputs), expected)


def test_executors_come_and_go() -> None:
    """Workers end with their executor, whether they spin or sleep."""
    program = toy_program()
    gc.collect()  # executors of other tests
    before = threading_count()
    for _ in range(20):
        native(program, num_threads=4).run(VALID)
    assert threading_count() == before


def threading_count() -> int:
    """Threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))


def isa_of_new_process(isa: str) -> subprocess.CompletedProcess[str]:
    code = "from octavo import kernels; print(kernels.info()['isa'])"
    path: Sequence[str] = [entry for entry in sys.path if entry]
    env = {**os.environ, "OCTAVO_ISA": isa, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


@every_isa
def test_environment_forces_the_isa(isa: str) -> None:
    assert isa_of_new_process(isa).stdout.strip() == isa


def test_environment_with_an_unknown_isa() -> None:
    result = isa_of_new_process("sse9")
    assert result.returncode != 0
    assert "OCTAVO_ISA: isa 'sse9' is unknown; this machine has: portable" in result.stderr


# --- memory ---


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_pools_pages_come_in_the_background_and_lose_nothing() -> None:
    program = toy_program()
    layout = toy_layout(program, block_size=16, num_blocks=10_000)
    before = _resident_bytes()
    executor = NativeExecutor(program, layout, num_threads=2, max_num_tokens=16)
    executor.kv[:, ::5000] = 1  # meanwhile, where pages may be just about to come
    deadline = time.monotonic() + 60
    while _resident_bytes() - before < layout.num_bytes * 0.99 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _resident_bytes() - before >= layout.num_bytes * 0.99
    assert (executor.kv[:, ::5000] == 1).all()
    assert not executor.kv[:, 1::5000].any()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
