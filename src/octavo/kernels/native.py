"""The executor that runs a program in C++: a whole step in one call, the GIL released, a team of threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.kernels.executor import FloatArray, Int32Array, StepInputs
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.ops import Op, Program


class NativeExecutor:
    """Runs a program over K and V memory of its own. Implements kernels.executor.Executor.

    Weights are packed at construction, in parallel, and `program` need not outlive it. A step's results
    are the same bits whatever the number of threads, the block size, and the neighbours in the step.
    """

    def __init__(
        self,
        program: Program,
        layout: KVLayout,
        *,
        num_threads: int,
        max_num_tokens: int,
        isa: str | None = None,
    ) -> None:
        """isa: the kernel table, one of kernels.info()["available_isas"]; None takes the default one.

        Raises ValueError for an isa that this machine cannot run, a layout that is not of the program's
        shape, and ops that name what does not exist or whose widths do not fit. Raises MemoryError when
        the memory for K and V or for the weights cannot be had.
        """
        shape = (layout.num_layers, layout.num_kv_heads, layout.head_dim)
        if shape != (program.num_layers, program.num_kv_heads, program.head_dim):
            raise ValueError(f"the layout's layers, kv heads and head_dim {shape} are not the program's")
        self._executor = _native.Executor(
            _plain_program(program),
            dataclasses.asdict(layout),
            num_threads=num_threads,
            max_num_tokens=max_num_tokens,
            isa=isa,
        )
        self._sampler = _native.TokenSampler(self._executor, program.vocab_size)
        self._kv = self._executor.kv_memory.view(layout.numpy_dtype).reshape(layout.shape)

    @property
    def isa(self) -> str:
        """The kernel table in use."""
        return self._executor.isa

    @property
    def kv(self) -> npt.NDArray[Any]:
        """The K and V memory itself, of the layout's dtype and shape: layer, block, kv head, K or V, element.

        64-byte aligned and zero at first. The first blocks, up to 1 GiB, get their pages in the background;
        others take memory when they are first written.
        """
        return self._kv

    def run(self, inputs: StepInputs) -> FloatArray:
        """Logits [R, vocab_size] for a step, valid until the next run. Writes K and V at the step's slots.

        Raises ValueError, naming the array and before anything is written, for ids and shapes out of range.
        Raises RuntimeError when another thread is in `run` of this executor.
        """
        return self._executor.run(*_arrays(inputs))

    def run_best(
        self, inputs: StepInputs, *, num_rounds: int = 1, stop_token_ids: Sequence[int] = ()
    ) -> tuple[Int32Array, FloatArray]:
        """As Executor.run_best. Stores no logits."""
        return self._executor.run_best(*_arrays(inputs), num_rounds=num_rounds, stop_token_ids=stop_token_ids)

    def choose_tokens(
        self,
        logits: FloatArray,
        samples: Sequence[Any],
        uniforms: Sequence[float],
        masked: Sequence[Collection[int]],
    ) -> list[tuple[int, float, list[tuple[int, float, int]] | None]]:
        """A Chooser of octavo.sampling, in C++: the GIL released, the samples shared out among the team.

        Raises ValueError for a row or token id out of range, RuntimeError while another thread is in `run`.
        """
        return self._sampler.choose(logits, samples, uniforms, masked)


def _arrays(inputs: StepInputs) -> tuple[Int32Array, ...]:
    return (
        inputs.token_ids,
        inputs.positions,
        inputs.slot_mapping,
        inputs.block_tables,
        inputs.query_start,
        inputs.context_lens,
        inputs.logits_rows,
        inputs.copies,
    )


def _plain_program(program: Program) -> dict[str, Any]:
    return {
        "ops": [_plain_op(op) for op in program.ops],
        "buffers": dict(program.buffers),
        "weights": {
            name: {
                "type": weight.type.value,
                "rows": weight.rows,
                "cols": weight.cols,
                "data": np.ascontiguousarray(weight.data),
            }
            for name, weight in program.weights.items()
        },
        "vocab_size": program.vocab_size,
    }


def _plain_op(op: Op) -> dict[str, Any]:
    return {"op": type(op).__name__, **dataclasses.asdict(op)}
