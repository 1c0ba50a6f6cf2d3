"""The runner asks for logits only when somebody looks at them."""

from __future__ import annotations

import dataclasses

import numpy as np

from octavo.batch import BestTokens, SampleRow, ScheduledBatch, ScheduledSequence
from octavo.kernels.native import NativeExecutor
from octavo.kernels.reference import ReferenceExecutor
from octavo.params import SamplingParams
from octavo.runner.runner import Runner
from support.toy import toy_layout, toy_program

GREEDY = SamplingParams(temperature=0.0)
PROGRAM = toy_program()
SEQUENCES = (
    ScheduledSequence(0, (3, 4, 5), 0, (1,)),
    ScheduledSequence(1, (6, 7), 0, (2,)),
    ScheduledSequence(2, (8,), 0, (3,)),
)
BATCH = ScheduledBatch(
    step_id=0,
    sequences=SEQUENCES,
    logits_for=(0, 2),
    samples=(SampleRow(0, 0, GREEDY, 0, 0, (), ()), SampleRow(2, 1, GREEDY, 0, 0, (), ())),
    copies=(),
    num_tokens=6,
)


def with_drawing(batch: ScheduledBatch) -> ScheduledBatch:
    drawing = dataclasses.replace(batch.samples[0], params=SamplingParams())
    return dataclasses.replace(batch, samples=(drawing, *batch.samples[1:]))


def test_greedy_batches_give_the_best_tokens_of_the_logits_that_others_give() -> None:
    layout = toy_layout(PROGRAM)
    executors = (
        NativeExecutor(PROGRAM, layout, num_threads=2, max_num_tokens=16),
        ReferenceExecutor(PROGRAM, layout),
    )
    for executor in executors:
        runner = Runner(executor, layout.block_size)
        best = runner.run(BATCH)
        logits = runner.run(with_drawing(BATCH))
        assert isinstance(best, BestTokens)
        assert isinstance(logits, np.ndarray)
        assert logits.shape == (2, PROGRAM.vocab_size)
        assert best.token_ids == [logits.argmax(axis=1).tolist()]
        assert best.logits == [logits.max(axis=1).tolist()]


def test_rounds_go_on_by_themselves() -> None:
    layout = toy_layout(PROGRAM)
    runner = Runner(NativeExecutor(PROGRAM, layout, num_threads=2, max_num_tokens=16), layout.block_size)
    alone = dataclasses.replace(
        BATCH, sequences=SEQUENCES[2:], logits_for=(0,), samples=BATCH.samples[:1], num_tokens=1
    )
    best = runner.run(dataclasses.replace(alone, num_rounds=5))
    assert isinstance(best, BestTokens)
    for position, (token_id,) in enumerate(best.token_ids, 1):
        sequence = ScheduledSequence(2, (token_id,), position, (3,))
        following = runner.run(dataclasses.replace(alone, sequences=(sequence,)))
        assert isinstance(following, BestTokens)
        if position < 5:
            assert following.token_ids[0] == best.token_ids[position]
    stop = best.token_ids[2][0]
    first = [ids[0] for ids in best.token_ids].index(stop)
    stopped = runner.run(dataclasses.replace(alone, num_rounds=5, stop_token_ids=(stop,)))
    assert isinstance(stopped, BestTokens)
    assert stopped.token_ids == best.token_ids[: first + 1]


def test_a_step_that_samples_nothing_gives_no_tokens() -> None:
    layout = toy_layout(PROGRAM)
    runner = Runner(NativeExecutor(PROGRAM, layout, num_threads=1, max_num_tokens=16), layout.block_size)
    assert runner.run(dataclasses.replace(BATCH, logits_for=(), samples=())) == BestTokens([[]], [[]])
