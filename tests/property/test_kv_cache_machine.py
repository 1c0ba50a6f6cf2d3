"""Random lives of a KV cache against plain dictionaries and a memory of plain integers.

The machine plays the scheduler and the executor at once: it opens steps, reserves, forks and frees in any
order, then either carries a step out (copies in order, then writes) or carries out a part and rolls it back.
After every rule: the cache's own integrity check, the model's counts, and every table reads back its tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from octavo.cache.block_table import BlockTable
from octavo.cache.kv_cache import KVCacheManager
from octavo.cache.promises import RoomToEnd
from support.paged_memory import PagedMemory, chain

NUM_RULES = 100_000
STEPS_PER_EXAMPLE = 250

# Four texts that agree for a while, so that prompts share blocks, parts of blocks, or nothing.
TEXTS = [
    [0, 1, 2, 3, 0, 0, 1, 1, 2, 2, 3, 3] * 6,
    [0, 1, 2, 3, 0, 0, 1, 1, 2, 2, 3, 0] * 6,
    [0, 1, 2, 3, 0, 2, 1, 0, 3, 1, 2, 0] * 6,
    [1, 3, 2, 0, 0, 2, 1, 0, 3, 1, 2, 0] * 6,
]
numbers = st.integers(0, 1 << 16)
lengths = st.integers(1, 40)


@dataclass(eq=False)
class Life:
    """A sequence, as the model knows it."""

    table: BlockTable
    token_ids: list[int]
    namespace: Hashable
    blocks: list[int]
    num_computed: int
    start: int = 0
    """First position that the step in progress writes."""
    is_new: bool = False
    is_fork: bool = False
    is_touched: bool = False
    """The step in progress writes it, or copies for it."""
    is_parent: bool = False


@dataclass
class Tally:
    """What happened over all examples, so that the test cannot pass with a dead rule."""

    rules: int = 0
    events: Counter[str] = field(default_factory=Counter)


class KVCacheMachine(RuleBasedStateMachine):
    tally = Tally()
    lives: dict[int, Life]

    @initialize(num_blocks=st.integers(4, 64), block_size=st.integers(1, 16))
    def build(self, num_blocks: int, block_size: int) -> None:
        self.cache = KVCacheManager(num_blocks, block_size)
        self.memory = PagedMemory(num_blocks, block_size)
        self.lives = {}
        self.pins: set[int] = set()
        self.next_id = 0
        self.is_open = False

    # Rules

    @rule(text=st.integers(0, 3), length=lengths, tail=st.integers(0, 5), salt=st.sampled_from(["", "", "s"]))
    def match(self, text: int, length: int, tail: int, salt: str) -> None:
        """A match changes nothing, leaves a token to compute, and what may be copied is already there."""
        self._count("match")
        prompt = self._prompt(text, length, tail)
        before = self._snapshot()
        match = self.cache.match(prompt, salt)
        assert self._snapshot() == before
        assert match.num_tokens < len(prompt)
        size = self.cache.block_size
        assert match.num_tokens == len(match.blocks) * size + match.num_copied_tokens
        expected = chain(prompt, salt)[: match.num_tokens]
        if match.source is not None:
            assert 0 < match.num_copied_tokens < size
            found = self.memory.blocks[match.source][: match.num_copied_tokens]
            assert found == expected[len(match.blocks) * size :], "what was found to copy is not computed"
        if not self.is_open:
            assert (
                self.memory.read(match.blocks, len(match.blocks) * size)
                == expected[: len(match.blocks) * size]
            )

    @rule(
        text=st.integers(0, 3),
        length=lengths,
        tail=st.integers(0, 5),
        salt=st.sampled_from(["", "", "s"]),
        spare=st.integers(0, 3),
        room=st.integers(0, 6),
    )
    def allocate(self, text: int, length: int, tail: int, salt: str, spare: int, room: int) -> None:
        """Match, then reserve: everything or nothing, exactly when the model says that there is room."""
        self._open()
        prompt = self._prompt(text, length, tail)
        promise = RoomToEnd(len(prompt) + 4 * room, 1 + room % 3) if room > 3 else None
        match = self.cache.match(prompt, salt)
        size = self.cache.block_size
        num_blocks = -(-len(prompt) // size)
        if promise is not None:
            shared = len(prompt) // size
            num_blocks = shared + promise.num_sequences * (-(-promise.end_len // size) - shared)
        num_missing = num_blocks - sum(1 for block in match.blocks if block in self._held())
        before = self._snapshot()
        table = self.cache.reserve_prompt(match, len(prompt), num_spare_blocks=spare, room=promise)
        assert (table is not None) == (num_missing + spare <= self._num_available_before(before))
        if table is None:
            self._count("refused")
            assert self._snapshot() == before
            return
        self._count("hit" if match.blocks else "part" if match.source is not None else "allocate")
        life = Life(table, prompt, salt, list(table.blocks), match.num_tokens, match.num_tokens, is_new=True)
        life.is_touched = True
        assert tuple(table.blocks[: len(match.blocks)]) == match.blocks
        self._admit(life)
        self.cache.publish(table, prompt, len(prompt))

    @precondition(lambda self: self.lives)
    @rule(which=numbers, num_tokens=st.integers(1, 9), token=st.integers(0, 3))
    def append_and_write(self, which: int, num_tokens: int, token: int) -> None:
        """Tokens are added and will be written: new blocks, and copies of shared ones."""
        self._open()
        life = self._pick(which)
        if life.is_touched or life.is_fork or life.is_parent:
            self._count("busy")
            return
        start, end = len(life.token_ids), len(life.token_ids) + num_tokens
        before, size = self._snapshot(), self.cache.block_size
        holders = Counter(block for other in self.lives.values() for block in other.blocks)
        shared = [b for b in life.blocks[start // size : -(-end // size)] if holders[b] > 1]
        num_needed = max(-(-end // size) - len(life.blocks), 0) + len(shared)
        promise = life.table.promise
        if promise is not None:
            num_needed -= min(
                promise.remaining, num_needed - (len(shared) if promise.num_members == 1 else 0)
            )
        fits = num_needed <= self._num_available_before(before)
        assert self.cache.reserve(life.table, start, end) == fits
        if not fits:
            assert self._snapshot() == before
            self._count("full")
            return
        self._count("copy-on-write" if shared else "append")
        self.pins.update(shared)
        life.token_ids += [token] * num_tokens
        life.is_touched, life.start = True, start
        life.blocks = list(life.table.blocks)
        self.cache.publish(life.table, life.token_ids, end)

    @precondition(lambda self: self.is_open)
    @rule(num_tokens=st.integers(1, 20))
    def reserve_ahead(self, num_tokens: int) -> None:
        """Those that the step writes get blocks for what is to come: all of them, or none."""
        lives = [life for life in self.lives.values() if life.is_touched and not life.is_parent]
        before, size = self._snapshot(), self.cache.block_size
        promises = {id(life.table.promise): life.table.promise for life in lives}
        num_new: Counter[int] = Counter()
        for life in lives:
            num_blocks = -(-(len(life.token_ids) + num_tokens) // size)
            num_new[id(life.table.promise)] += max(num_blocks - len(life.blocks), 0)
        promised = {key: promise.remaining if promise else 0 for key, promise in promises.items()}
        num_needed = sum(max(count - promised[key], 0) for key, count in num_new.items())
        fits = num_needed <= self._num_available_before(before)
        assert self.cache.reserve_ahead({li.table: len(li.token_ids) + num_tokens for li in lives}) == fits
        if not fits:
            assert self._snapshot() == before
        self._count("ahead" if fits else "no room ahead")
        for life in lives:
            life.blocks = list(life.table.blocks)

    @precondition(lambda self: self.lives)
    @rule(which=numbers)
    def fork(self, which: int) -> None:
        self._open()
        life = self._pick(which)
        if life.is_fork:
            self._count("busy")
            return
        self._count("fork")
        blocks = life.blocks[: -(-len(life.token_ids) // self.cache.block_size)]
        twin = Life(self.cache.fork(life.table), list(life.token_ids), life.namespace, blocks, 0)
        twin.is_fork = life.is_parent = True
        assert twin.table.blocks == blocks
        self._admit(twin)

    @precondition(lambda self: self.lives)
    @rule(which=numbers, publishes=st.booleans())
    def free(self, which: int, publishes: bool) -> None:
        """A sequence that the step does not touch ends or is preempted. Twice is an error at once."""
        key, life = self._pick_item(which)
        if life.is_touched or life.is_fork or life.is_parent:
            self._count("busy")
            return
        self._count("free")
        self._free(key, life, publishes)
        with pytest.raises(RuntimeError):
            self.cache.release(life.table)

    @precondition(lambda self: self.lives and not self.is_open)
    @rule(which=numbers)
    def publish(self, which: int) -> None:
        self._count("publish")
        life = self._pick(which)
        self.cache.publish_tail(life.table, life.token_ids, life.num_computed)

    @precondition(lambda self: self.is_open)
    @rule(aborts=st.integers(0, 7))
    def carry_out(self, aborts: int) -> None:
        """The step runs and is committed; now and then a client leaves while it does."""
        self._count("commit")
        writes = [life for life in self.lives.values() if life.is_touched]
        tables = [(life, list(life.table.blocks)) for life in writes]
        copies = self.cache.copies
        self._abort_in_flight(aborts)
        self.memory.copy(copies)
        for life, blocks in tables:
            self.memory.write(blocks, life.start, life.token_ids[life.start :], life.namespace)
        self.cache.commit_step()
        self._close()

    @precondition(lambda self: self.is_open)
    @rule(aborts=st.integers(0, 7), num_done=st.integers(0, 4), runs_copies=st.booleans())
    def roll_back(self, aborts: int, num_done: int, runs_copies: bool) -> None:
        """The step raises half way: tables are as before, and nothing uncomputed can be found."""
        self._count("rollback")
        if runs_copies:
            self.memory.copy(self.cache.copies)
        for life in [life for life in self.lives.values() if life.is_touched][:num_done]:
            self.memory.write(life.table.blocks, life.start, [9] * (len(life.token_ids) - life.start), "junk")
        self._abort_in_flight(aborts)
        before = {id(life): self.before[id(life)] for life in self.lives.values() if id(life) in self.before}
        self.cache.rollback_step()
        for key, life in list(self.lives.items()):
            if life.is_new or life.is_fork:
                del self.lives[key]
                continue
            life.blocks, num_tokens = before[id(life)]
            assert life.table.blocks == life.blocks
            del life.token_ids[num_tokens:]
        self._close(was_undone=True)

    # What holds after every rule

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        holders: Counter[int] = Counter()
        for life in self.lives.values():
            assert life.table.blocks == life.blocks
            holders.update(life.blocks)
            self.cache.check_contents(life.table, life.token_ids)
            if not self.is_open:
                values = self.memory.read(life.blocks, len(life.token_ids))
                assert values == chain(life.token_ids, life.namespace), "a table reads other tokens"
        pool = self.cache._pool
        assert {b: pool.ref_count(b) for b in range(pool.num_blocks) if pool.ref_count(b)} == dict(holders)
        assert self.cache.num_held_blocks == len(self._held())

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        if self.is_open:
            self.cache.rollback_step()
        for life in self.lives.values():
            if not life.table.is_released:
                self.cache.release(life.table)
        self.cache.check_integrity()
        assert self.cache.num_held_blocks == self.cache.num_promised_blocks == 0
        self.tally.events["evict"] += self.cache.num_evictions

    # The model

    def _count(self, event: str) -> None:
        self.tally.rules += 1
        self.tally.events[event] += 1

    def _prompt(self, text: int, length: int, tail: int) -> list[int]:
        """A text's beginning, then, for some, a tail of its own."""
        return TEXTS[text][:length] + [4 + tail] * (tail if tail > 2 else 0)

    def _open(self) -> None:
        if not self.is_open:
            self.cache.begin_step()
            self.is_open = True
            self.before = {id(life): (list(life.blocks), len(life.token_ids)) for life in self.lives.values()}

    def _close(self, was_undone: bool = False) -> None:
        self.is_open = False
        self.pins.clear()
        for life in self.lives.values():
            if not was_undone:
                life.num_computed = len(life.token_ids)
            life.is_new = life.is_fork = life.is_parent = life.is_touched = False

    def _abort_in_flight(self, aborts: int) -> None:
        """Choices 0 and 1 of 8 name a sequence that ends between planning and the end of the step."""
        if aborts < 2 and self.lives:
            key, life = self._pick_item(aborts)
            self.tally.events["abort in flight"] += 1
            self._free(key, life, publishes=not life.is_fork)

    def _admit(self, life: Life) -> None:
        self.lives[self.next_id] = life
        self.next_id += 1

    def _free(self, key: int, life: Life, publishes: bool) -> None:
        del self.lives[key]
        if publishes:
            self.cache.publish_tail(life.table, life.token_ids, life.num_computed)
        self.cache.release(life.table)

    def _pick(self, which: int) -> Life:
        return self._pick_item(which)[1]

    def _pick_item(self, which: int) -> tuple[int, Life]:
        keys = list(self.lives)
        key = keys[which % len(keys)]
        return key, self.lives[key]

    def _held(self) -> set[int]:
        return {block for life in self.lives.values() for block in life.blocks} | self.pins

    def _num_available_before(self, snapshot: tuple[object, ...]) -> int:
        num_promised = snapshot[1]
        assert isinstance(num_promised, int)
        return self.cache.num_blocks - len(self._held()) - num_promised

    def _snapshot(self) -> tuple[object, ...]:
        """All that a question, or a reservation that fails, must leave alone."""
        pool = self.cache._pool
        return (
            tuple(pool.free_list()),
            self.cache.num_promised_blocks,
            tuple(pool.ref_count(block) for block in range(pool.num_blocks)),
            len(self.cache._tree),
        )


@pytest.mark.timeout(600)
def test_kv_cache_against_dictionaries() -> None:
    KVCacheMachine.tally = tally = Tally()
    run_machine(
        KVCacheMachine,
        settings=settings(
            max_examples=NUM_RULES // STEPS_PER_EXAMPLE + 80,
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert tally.rules >= NUM_RULES, tally
    happened = {event for event, count in tally.events.items() if count > 20}
    assert happened >= {
        "match", "allocate", "hit", "part", "refused", "append", "copy-on-write", "full", "fork", "free",
        "publish", "commit", "rollback", "abort in flight", "evict", "ahead", "no room ahead",
    }  # fmt: skip
