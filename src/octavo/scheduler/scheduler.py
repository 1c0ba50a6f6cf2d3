"""Who runs in the next step. No phases: every sequence has a gap of tokens, and a step closes part of it."""

from __future__ import annotations

from collections.abc import Hashable

from octavo.batch import SampledToken, SampledTokens, ScheduledBatch, SequenceUpdate
from octavo.cache.kv_cache import KVCacheManager
from octavo.config import SchedulerConfig
from octavo.request import FinishReason, Request, Sequence
from octavo.scheduler.admission import AdmissionCounters, AdmissionRules, RequestRefused
from octavo.scheduler.entry import Entry, check_queues
from octavo.scheduler.plan import StepPlan
from octavo.scheduler.policy import chunk_len, insert_by_age, pick_victim
from octavo.scheduler.stats import SchedulerStats
from octavo.scheduler.stop import LENGTH, stop_by_token
from octavo.scheduler.updates import end_update, token_update


class Scheduler:
    """schedule() plans a step, commit() takes its tokens, fail() undoes it. Holds ids and counts, never a
    tensor.

    Progress. Running sequences are served oldest first, and victims are taken youngest first. So the oldest
    running sequence without a promise loses its blocks only when all others were promised theirs, and those
    run to their end without asking. Whoever was preempted max_preemptions times comes back with a promise; a
    lone sequence always fits, since none is longer than the pool. The head of the queue is never overtaken,
    and when nothing runs it is admitted. Hence every sequence ends.

    Not safe for two threads at once.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        *,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        namespace: Hashable = (),
    ) -> None:
        self._config = config
        self._cache = cache
        self._rules = AdmissionRules(config, cache, max_model_len)
        self._eos_token_ids = eos_token_ids
        self._namespace = namespace
        self._waiting: list[Entry] = []
        self._running: list[Entry] = []
        self._suspects: list[Entry] = []
        """Sequences of a step that failed; each is scheduled alone until it has passed. Oldest first."""
        self._entries: dict[int, Entry] = {}
        self._requests: dict[str, list[Entry]] = {}
        """Both by id, and without what has ended."""
        self._plan: StepPlan | None = None
        self._counters = AdmissionCounters()
        self._next_seq_id = 0
        self._next_step_id = 0

    # Questions

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def stats(self) -> SchedulerStats:
        cache, counters = self._cache, self._counters
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_blocks=cache.num_blocks,
            num_free_blocks=cache.num_free_blocks,
            num_cached_blocks=cache.num_cached_blocks,
            num_held_blocks=cache.num_held_blocks,
            num_prefix_queries=counters.num_prefix_queries,
            num_prefix_hits=counters.num_prefix_hits,
            num_admitted=counters.num_admitted,
            num_delayed=counters.num_delayed,
            num_preemptions=counters.num_preemptions,
            num_evictions=cache.num_evictions,
            num_copied_blocks=cache.num_copied_blocks,
            num_refused=counters.num_refused,
        )

    # What comes and goes

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused, naming the field, if it could never run here."""
        try:
            if request.request_id in self._requests:
                raise RequestRefused(f"request_id {request.request_id!r} is in use", "request_id")
            self._rules.check(request)
        except RequestRefused:
            self._counters.num_refused += 1
            raise
        first, *siblings = entries = [self._new_entry(request, index) for index in range(request.params.n)]
        first.siblings = siblings
        self._requests[request.request_id] = entries
        self._entries.update((entry.seq.seq_id, entry) for entry in entries)
        self._waiting.append(first)

    def abort(self, request_id: str) -> list[SequenceUpdate]:
        """End all sequences of a request, at any moment; a step in flight goes on without them.

        Returns their updates; [] for an unknown request.
        """
        entries = list(self._requests.get(request_id, ()))
        for entry in entries:
            self._end(entry, FinishReason.ABORT)
        return [end_update(entry) for entry in entries]

    def finish(self, seq_id: int, reason: FinishReason) -> None:
        """End a sequence for a reason that only its text shows, between steps.

        Raises KeyError if it has ended or never was, RuntimeError if it has not begun or a step is in flight.
        """
        entry = self._entries[seq_id]
        if self._plan is not None or not entry.seq.output_token_ids:
            raise RuntimeError(f"sequence {seq_id} cannot be finished now")
        self._end(entry, reason)

    def preempt(self, seq_id: int) -> None:
        """Send a running sequence back to the queue, between steps. Its findable blocks stay cached.

        Raises KeyError for an unknown sequence, RuntimeError if it does not run or a step is in flight.
        """
        entry = self._entries[seq_id]
        if self._plan is not None or entry not in self._running:
            raise RuntimeError(f"sequence {seq_id} cannot be preempted now")
        self._preempt(entry)

    # The step

    def schedule(self, max_rounds: int = 1) -> ScheduledBatch:
        """Plan the next step and reserve its blocks. If it raises, nothing is left reserved.

        max_rounds: times that the step may be done in a row, if all that runs can go on by itself.
        An empty batch is done as it is: it may be committed, but need not be. Raises RuntimeError while the
        step before is neither committed nor failed.
        """
        self._cache.begin_step()
        plan = self._plan = StepPlan(self._next_step_id, self._config.max_num_batched_tokens)
        self._next_step_id += 1
        try:
            if not self._plan_suspect(plan):
                self._plan_running(plan)
                self._plan_admissions(plan)
                self._plan_rounds(plan, max_rounds)
            batch = plan.to_batch(self._cache.copies)
        except BaseException:
            self._roll_back(plan)
            raise
        if batch.is_empty:
            self._plan = None
            self._cache.commit_step()
        return batch

    def commit(self, batch: ScheduledBatch, tokens: SampledTokens) -> list[SequenceUpdate]:
        """The step is done: advance what it computed, append the sampled tokens, end what has ended.

        Raises RuntimeError for a batch that is not in flight, ValueError for tokens that are not the batch's;
        then nothing has changed and the step can still fail.
        """
        if batch.is_empty:
            return []
        plan = self._plan_of(batch)
        num_rounds = batch.num_rounds_of(tokens)
        self._plan = None
        self._cache.commit_step()
        for entry in plan.admitted:
            members = self._requests.get(entry.seq.request.request_id, ())
            self._counters.on_admitted(entry, members, is_caching=self._cache.enable_prefix_caching)
        for entry, scheduled in zip(plan.entries, batch.sequences, strict=True):
            entry.seq.num_computed = scheduled.context_len
        if self._suspects:
            self._suspects = [e for e in self._suspects if e not in plan.entries and not e.seq.is_finished]
        sampled = zip(plan.samplers * num_rounds, tokens.tokens, strict=True)
        return [self._append(entry, token) for entry, token in sampled if not entry.seq.is_finished]

    def fail(self, batch: ScheduledBatch, error: str) -> list[SequenceUpdate]:
        """The step raised: undo it as if it had not been scheduled, and find out whose fault it was.

        A sequence that was alone ends with `error`. Of several each becomes a suspect, and is scheduled alone
        until it has passed. Preempted sequences stay preempted, evicted blocks evicted.
        """
        if batch.is_empty:
            return []
        plan = self._plan_of(batch)
        self._roll_back(plan)
        alive = [entry for entry in plan.entries if not entry.seq.is_finished]
        if len(plan.entries) > 1:
            self._suspects = sorted({*self._suspects, *alive}, key=lambda entry: entry.seq.seq_id)
            return []
        ended = [member for entry in alive for member in (entry, *entry.siblings)]
        for entry in ended:
            self._end(entry, FinishReason.ERROR)
        return [end_update(entry, error) for entry in ended]

    def check_integrity(self) -> None:
        """Raises AssertionError unless queues, sequences and the cache agree. O(everything)."""
        self._cache.check_integrity()
        check_queues(self._waiting, self._running, self._entries, self._requests)
        for entry in self._running:
            assert entry.table is not None
            self._cache.check_contents(entry.table, entry.seq.token_ids)
        assert self.has_work or self._plan or not self._cache.num_held_blocks, "blocks are held for nobody"

    # Planning

    def _plan_running(self, plan: StepPlan) -> None:
        """Sequences with one token to compute, oldest first, then part-done prompts."""
        part_done = []
        for entry in tuple(self._running):
            if entry.table is None:
                continue  # preempted for an older one
            if entry.seq.gap == 1:
                self._plan_entry(plan, entry)
            else:
                part_done.append(entry)
        for entry in part_done:
            if entry.table is not None:
                self._plan_entry(plan, entry)

    def _plan_entry(self, plan: StepPlan, entry: Entry) -> None:
        """Schedule what the budget allows of a running sequence's gap, preempting for its blocks."""
        seq = entry.seq
        num_tokens = chunk_len(seq.gap, plan.budget)
        if not num_tokens:
            return
        start = seq.num_computed
        while entry.table is not None:
            if self._cache.reserve(entry.table, start, start + num_tokens):
                self._schedule_tokens(plan, entry, num_tokens)
                return
            plan.has_preempted = True
            self._preempt(pick_victim(self._running, entry))

    def _plan_admissions(self, plan: StepPlan) -> None:
        """Admit from the head of the queue, which is not overtaken. Nobody comes after a preemption."""
        if plan.has_preempted:
            return
        while self._waiting and plan.budget:
            entry = self._waiting[0]
            if entry in self._suspects or not self._has_seats(entry):
                return
            if not self._admit(plan, entry):
                self._counters.num_delayed += 1
                return

    def _plan_rounds(self, plan: StepPlan, max_rounds: int) -> None:
        """Let the step be done several times, if nothing could be decided in between and blocks are there."""
        num_rounds = plan.most_rounds(max_rounds) if len(plan.entries) == len(self._running) else 1
        if num_rounds == 1:
            return
        ends = {e.table: e.seq.num_computed + num_rounds for e in plan.entries if e.table is not None}
        if self._cache.reserve_ahead(ends):
            plan.repeat(num_rounds, self._eos_token_ids)

    def _plan_suspect(self, plan: StepPlan) -> bool:
        """Schedule one suspect alone. False if there is none, or each waits for blocks of others."""
        self._suspects = [entry for entry in self._suspects if not entry.seq.is_finished]
        for entry in self._suspects:
            if entry.table is not None:
                self._plan_entry(plan, entry)
            elif not plan.has_preempted and self._has_seats(entry):
                self._admit(plan, entry)
            if plan.entries:
                return True
        return False

    def _has_seats(self, entry: Entry) -> bool:
        num_taken = sum(other.num_seats for other in self._running)
        return num_taken + entry.num_seats <= self._config.max_num_seqs

    def _admit(self, plan: StepPlan, entry: Entry) -> bool:
        """Give a waiting sequence its blocks and its share of the step, or change nothing and return False.

        The whole prompt is matched before it is cut into chunks: what is found costs no budget.
        """
        seq = entry.seq
        match = self._cache.match(seq.token_ids, (self._namespace, seq.request.cache_salt))
        table = self._cache.reserve_prompt(
            match,
            seq.num_tokens,
            num_spare_blocks=self._rules.num_spare_blocks(len(self._running)),
            room=self._rules.room(entry),
        )
        if table is None:
            return False
        plan.admitted.append(entry)
        entry.table, seq.num_computed = table, match.num_tokens
        self._waiting.remove(entry)
        insert_by_age(self._running, entry)
        self._schedule_tokens(plan, entry, chunk_len(seq.gap, plan.budget))
        return True

    def _schedule_tokens(self, plan: StepPlan, entry: Entry, num_tokens: int) -> None:
        seq, table = entry.seq, entry.table
        assert table is not None
        end = seq.num_computed + num_tokens
        closes_gap = end == seq.num_tokens
        plan.add(
            entry, num_tokens, table.blocks if closes_gap else table.blocks[: self._cache.num_blocks_of(end)]
        )
        self._cache.publish(table, seq.token_ids, end)
        if closes_gap:
            plan.sample([entry, *self._fork_siblings(plan, entry)])

    def _fork_siblings(self, plan: StepPlan, entry: Entry) -> list[Entry]:
        """At the end of its prompt a request's first sequence gets company, which shares all its blocks."""
        if not entry.siblings:
            return []
        twins, entry.siblings = entry.siblings, []
        plan.forked.append((entry, twins))
        assert entry.table is not None
        for twin in twins:
            twin.table = self._cache.fork(entry.table)
            insert_by_age(self._running, twin)
        return twins

    # Changes of state

    def _new_entry(self, request: Request, index: int) -> Entry:
        seq = Sequence(self._next_seq_id, request, index, list(request.prompt_token_ids))
        self._next_seq_id += 1
        return Entry(seq, self._rules.end_len(request))

    def _append(self, entry: Entry, token: SampledToken) -> SequenceUpdate:
        seq = entry.seq
        seq.num_computed = seq.num_tokens
        if not seq.output_token_ids and entry.table is not None:
            self._cache.publish_tail(entry.table, seq.token_ids, seq.num_computed)
        seq.append(token.token_id)
        stop = stop_by_token(token.token_id, seq.num_output_tokens, seq.request.params, self._eos_token_ids)
        if stop is None and seq.num_tokens >= entry.end_len:
            stop = LENGTH
        if stop is not None:
            self._end(entry, stop.reason)
        return token_update(entry, token, stop)

    def _end(self, entry: Entry, reason: FinishReason) -> None:
        seq = entry.seq
        seq.finish_reason = reason
        del self._entries[seq.seq_id]
        group = self._requests[seq.request.request_id]
        group.remove(entry)
        if not group:
            del self._requests[seq.request.request_id]
        if entry.table is not None:
            self._release(entry)
            self._running.remove(entry)
        elif entry in self._waiting:
            self._waiting.remove(entry)

    def _preempt(self, entry: Entry) -> None:
        """Recompute later: give the blocks back and queue again, by age."""
        self._release(entry)
        self._running.remove(entry)
        insert_by_age(self._waiting, entry)
        entry.seq.num_computed = 0
        entry.seq.num_preemptions += 1
        self._counters.num_preemptions += 1

    def _release(self, entry: Entry) -> None:
        """The only way back for blocks. What was computed stays findable, the partial block too."""
        table, entry.table = entry.table, None
        assert table is not None
        self._cache.publish_tail(table, entry.seq.token_ids, entry.seq.num_computed)
        self._cache.release(table)

    def _roll_back(self, plan: StepPlan) -> None:
        """Undo what the plan reserved: the cache undoes tables, this undoes queues."""
        self._plan = None
        self._cache.rollback_step()
        for parent, twins in reversed(plan.forked):
            parent.siblings = [twin for twin in twins if not twin.seq.is_finished]
            for twin in twins:
                twin.table = None
                if twin in self._running:
                    self._running.remove(twin)
        for entry in plan.admitted:
            if not entry.seq.is_finished:
                entry.table, entry.seq.num_computed = None, 0
                if entry in self._running:
                    self._running.remove(entry)
                if entry not in self._waiting:
                    insert_by_age(self._waiting, entry)

    def _plan_of(self, batch: ScheduledBatch) -> StepPlan:
        if self._plan is None or self._plan.batch is not batch:
            raise RuntimeError("this batch is not in flight")
        return self._plan
