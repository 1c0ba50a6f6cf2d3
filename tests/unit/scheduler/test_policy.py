"""Orders and amounts."""

from __future__ import annotations

import pytest

from octavo.cache.block_table import BlockTable
from octavo.cache.promises import Promise
from octavo.params import SamplingParams
from octavo.request import Request, Sequence
from octavo.scheduler.entry import Entry
from octavo.scheduler.policy import chunk_len, insert_by_age, pick_victim

REQUEST = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams())


def entry(seq_id: int, is_promised: bool = False) -> Entry:
    promise = Promise(end_blocks=1, remaining=1) if is_promised else None
    return Entry(Sequence(seq_id, REQUEST, 0, [1]), 10, table=BlockTable(4, promise=promise))


@pytest.mark.parametrize(
    ("gap", "budget", "expected"),
    [(1, 512, 1), (100, 512, 100), (100, 100, 100), (100, 50, 48), (100, 16, 16), (100, 15, 15), (5, 0, 0)],
)
def test_chunks_are_whole_row_tiles_when_they_are_cut(gap: int, budget: int, expected: int) -> None:
    assert chunk_len(gap, budget) == expected


def test_queues_are_ordered_by_age() -> None:
    queue: list[Entry] = []
    for seq_id in (3, 1, 2):
        insert_by_age(queue, entry(seq_id))
    assert [e.seq.seq_id for e in queue] == [1, 2, 3]


def test_the_youngest_without_a_promise_has_to_go() -> None:
    old, middle, young = entry(1), entry(2), entry(3, is_promised=True)
    running = [old, middle, young]
    assert pick_victim(running, old) is middle
    assert pick_victim(running, middle) is middle, "nobody older goes"
    with pytest.raises(RuntimeError, match="promised"):
        pick_victim(running, young)
