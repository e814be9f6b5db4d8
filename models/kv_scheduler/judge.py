"""Judges a kv_scheduler: runs the batches that it decides on the stamps memory, and checks the laws.

A batch is launched as soon as it is scheduled, so its copies, writes and reads happen then, and its tokens are
sampled then; the scheduler hears of them in `update`. Whatever else it does meanwhile comes after the forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import require
from kvlockstep.models.kv_scheduler import goals
from kvlockstep.models.kv_scheduler.job import Flight, Job
from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.models.kv_scheduler.transfers import Moving
from kvlockstep.models.requests.adapter import number
from kvlockstep.models.requests.answers import DONE, Answer, batch_text
from kvlockstep.models.requests.request import Request
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties.law import counted
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, PAD_DRAFT, Batch, Item
from kvlockstep.reference.kv_scheduler.transfers import Transfer

SHOWN_BATCHES = 8
# Rounds of transfers that follow from one another, in which all end at once.
MOST_ROUNDS = 20


class SchedulerJudge(SchedulerSession):
    """One scheduler under its users. Every public method with an Answer is an operation of a trace.

    `budget` tokens and `running` requests are the most that a batch may have. An operation raises Divergence if a law
    does not hold, and NotEnabled, with nothing changed, if it is not legal now.
    """

    def __init__(self, adapter: Any, budget: int, running: int) -> None:
        super().__init__(adapter, budget, running)
        self._settle()

    def add(
        self, name: str, tokens: Sequence[int], extra_key: int | None, max_tokens: int, priority: int | None
    ) -> Answer:
        """A request arrives."""
        require(name not in self.used_names and tokens and max_tokens >= 1)
        require(len(tokens) + max_tokens <= self.longest)
        require(extra_key is None or self.traits.extra_key)
        require(not priority or self.traits.policy == "priority")
        rank = (priority or 0, next(self._arrivals))
        self.used_names.add(name)
        self._call(self.adapter.add, name, list(tokens), extra_key, max_tokens, priority or 0)
        self.live[name] = Job(Request(name, list(tokens), extra_key), max_tokens, rank, len(tokens))
        self._batches_without_token = 0
        self.goals_met["extra_key"] += extra_key is not None
        self._settle()
        return DONE

    def draft(self, name: str, tokens: Sequence[int]) -> Answer:
        """Drafts are offered for the next batch of a request that decodes."""
        require(name in self.draftable() and 0 < len(tokens) <= self.traits.drafts)
        self._offer(name, tokens)
        self._settle()
        return DONE

    def schedule(self, tokens: Sequence[int], accept: int = 0, drafts: Sequence[int] = ()) -> Answer:
        """A batch is decided and launched; its n-th request that samples gets the n-th of `tokens`, cyclically.

        Of each request's drafts the first `accept` are right. `drafts` are what the device drafts behind them.
        """
        require(self.allows("schedule") and tokens)
        require(not drafts or (self.drafts_overlap and len(drafts) <= self.traits.drafts))
        device = [[dict(flight.accepted) for flight in self.flights]] if self.drafts_overlap else []
        batch = Batch(*self._call(self.adapter.schedule, *device))
        items = [Item(*item) for item in batch.items]
        transfers = self.transfers.submitted() if self.transfers else []
        self._said = batch_text(items, batch.copies, batch.preempted)
        self._let_go()
        self._check_preempted(batch.preempted)
        # Who waits for a transfer may schedule nothing, and may lose what he computed for want of room.
        waits = self.transfers is not None and bool(self.transfers.moving or transfers)
        # So may who has made room for a request that holds what was loaded for it, and goes on in the next batch.
        waits = waits or bool(self.transfers and batch.preempted and not items and self.holding)
        if not self.flights and not waits:
            self._check(laws.progress, len(items), list(self.live))
        self._check_items(items, {rid for transfer in transfers for rid in transfer.rids})
        if self.transfers:
            self._before_forward(items, transfers, batch.copies)
        self._forward(items, batch.copies)
        if self.transfers:
            self.transfers.start((transfer for transfer in transfers if not transfer.before), self.live)
        flight = self._sample(items, tokens, accept)
        self.flights.append(flight)
        for name in flight.sampled if drafts else ():
            self._offer(name, drafts)
        self.goals_met["overlap"] += len(self.flights) > 1
        self._batches_without_token = 0 if flight.sampled or not items or waits else self._batches_without_token + 1
        self._check(laws.liveness, self._batches_without_token, sum(job.work for job in self.live.values()))
        self._settle()
        return Answer(text=self.so_far)

    def update(self) -> Answer:
        """The scheduler hears of the tokens of the oldest batch."""
        require(self.allows("update"))
        flight = self.flights.popleft()
        expected = []
        for name, gained in flight.gained.items():
            job = self.live.get(name)
            self.goals_met["late_token"] += job is None
            self.goals_met["late_drafts"] += job is None and self.drafts_overlap and name in flight.accepted
            if job is not None:
                job.delivered += len(gained)
                if not job.aborted and (END_TOKEN in gained or job.delivered == job.max_tokens):
                    expected.append(name)
                    self.goals_met["ended_by_token"] += job.delivered < job.max_tokens
                    self.goals_met["ended_by_length"] += job.delivered == job.max_tokens
        accepted = [dict(flight.accepted)] if self.traits.drafts else []
        ended = self._call(self.adapter.update, dict(flight.sampled), *accepted)
        self._check(laws.ending, [name for name in ended if name not in self._aborted], expected)
        for name in expected:
            del self.live[name]
        self._let_go()
        if self.transfers:
            self.transfers.returned()
        self._check(laws.ending, [], [name for name, gained in flight.gained.items() if gained and self._lingers(name)])
        self._settle()
        return Answer(text=f"ended {','.join(expected)}") if expected else DONE

    def abort(self, name: str) -> Answer:
        """A request ends wherever it is."""
        require(self.allows("abort") and name in self.live and not self.live[name].aborted)
        job = self.live[name]
        job.aborted = True
        self._aborted.add(name)
        self._batches_without_token = 0
        self.goals_met["abort_waiting"] += job.fresh and not job.preempted
        self.goals_met["abort_preempted"] += job.preempted
        self.goals_met["abort_in_flight"] += any(name in flight.names for flight in self.flights)
        if self.transfers:
            self.transfers.gone(name)
        self._call(self.adapter.abort, name)
        self._let_go()
        self._settle()
        return DONE

    def reset(self) -> Answer:
        """Every content is dropped; live requests wait again."""
        require(self.allows("reset"))
        if self.transfers and self.traits.in_steps:
            self._end_all()
        self._call(self.adapter.reset)
        self.goals_met["reset_live"] += any(not job.fresh for job in self.live.values())
        queued = [name for names in self._call(self.adapter.queues).values() for name in names]
        for name in queued:
            if name in self.live and not self.live[name].fresh:
                self._queue_again(name)
        for job in self.live.values():
            job.fresh = True
            job.offered = []
        self._batches_without_token = 0
        avail = number(self.adapter.avail)
        free = len(self.tables.free()) if self.tables.shows_free else avail
        limbo = self.transfers.limbo(set()) if self.transfers else 0
        self._check(laws.reset_complete, avail, free, self.traits.total, limbo)
        slots = self.occupancy.all_slots()
        if self.transfers:
            slots = self.transfers.unpoisoned(slots)
            self.transfers.reset()
        self.memory.reset(slots)
        self._settle()
        return DONE

    def drain(self, tokens: Sequence[int]) -> Answer:
        """Batch after batch runs until every request has ended."""
        require(self.allows("drain") and tokens)
        limit = 4 * sum(job.work for job in self.live.values()) + 20
        batches = 0
        shown: deque[str] = deque(maxlen=SHOWN_BATCHES)
        try:
            while self.live and batches < limit:
                if self.transfers:
                    self._end_all()
                shown.append(str(self.schedule(tokens)))
                self.update()
                batches += 1
            if self.transfers:
                self._end_all()
        except Divergence as wrong:
            last = "the last one" if len(shown) == 1 else "the last ones"
            lines = [f"after {counted(batches, 'batch')} of it, {last} {'; '.join(shown)}"] if shown else []
            raise Divergence(wrong.law, wrong.message, [*wrong.details, *lines]) from None
        self._check(laws.every_request_ends, list(self.live), batches)
        self.goals_met["drain"] += 1
        return Answer(text=counted(batches, "batch"))

    def complete(self, transfer: int) -> Answer:
        """The n-th transfer in flight, the oldest is 0, ends; the scheduler is told."""
        moving = self._moving(transfer)
        return self._end(moving, None)

    def complete_all(self) -> Answer:
        """Every transfer in flight ends, the oldest first."""
        require(self.allows("complete_all") and self.transfers)
        assert self.transfers is not None
        ended = self.transfers.unended
        for moving in ended:
            self.transfers.end(moving)
        self._settle()
        return Answer(text=f"{', '.join(map(str, ended))} landed")

    def fail(self, transfer: int) -> Answer:
        """The n-th transfer in flight fails, with nothing written."""
        moving = self._moving(transfer)
        require(moving.may_fail(self.traits.fails))
        return self._end(moving, 0)

    def tear(self, transfer: int, written: int) -> Answer:
        """The n-th transfer in flight is a load that fails after its first `written` blocks."""
        moving = self._moving(transfer)
        require(moving.may_fail(self.traits.fails) and moving.transfer.kind == "load")
        require(0 < written < len(moving.targets))
        return self._end(moving, written)

    def poll(self) -> Answer:
        """The scheduler takes in what has ended, and submits what is due."""
        require(self.allows("poll") and self.transfers)
        self._poll()
        self._settle()
        return DONE

    def _moving(self, transfer: int) -> Moving:
        require(self.transfers)
        assert self.transfers is not None
        require(0 <= transfer < len(self.transfers.unended))
        return self.transfers.unended[transfer]

    def _end(self, moving: Moving, written: int | None) -> Answer:
        assert self.transfers is not None
        self.transfers.end(moving, written)
        self._settle()
        return Answer(text=f"{moving} {'landed' if written is None else 'failed'}")

    def _poll(self) -> None:
        assert self.transfers is not None
        self._call(self.adapter.poll)
        self.transfers.heard()

    def _end_all(self) -> None:
        """Everything in flight ends and is heard, and what is submitted then, too."""
        assert self.transfers is not None
        for _ in range(MOST_ROUNDS):
            for moving in self.transfers.unended:
                self.transfers.end(moving)
            self._poll()
            self._settle()
            if self.transfers.quiet:
                break

    def _before_forward(
        self, items: Sequence[Item], transfers: Sequence[Transfer], copies: Sequence[tuple[int, int]]
    ) -> None:
        """Starts what runs in front of the batch, waits as the worker does, and looks at what the batch writes."""
        assert self.transfers is not None
        self.transfers.start((transfer for transfer in transfers if transfer.before), self.live)
        self.transfers.wait()
        size = self.traits.block_size
        self.transfers.check_writes("a copy", dict.fromkeys(target // size for _, target in copies))
        for item in items:
            self.transfers.check_writes(item.rid, dict.fromkeys(slot // size for slot in item.slots[item.start :]))
        starts = [(item.rid, item.start) for item in items if self.live[item.rid].fresh]
        blocks = {slot // size for item in items for slot in item.slots}
        self.transfers.launched([item.rid for item in items], blocks, starts)

    def _offer(self, name: str, drafts: Sequence[int]) -> None:
        self.live[name].offered = list(drafts)
        self._call(self.adapter.draft, name, list(drafts))

    def _queue_again(self, name: str) -> None:
        if self.traits.preempted_last:
            self.live[name].rank = (self.live[name].rank[0], next(self._arrivals))

    def _let_go(self) -> None:
        """Aborted requests are gone, with `late_aborts` as soon as they stand in no queue."""
        aborted = [name for name in self.live if self._lingers(name)]
        if aborted and self.traits.late_aborts:
            standing = {name for names in self._call(self.adapter.queues).values() for name in names}
            aborted = [name for name in aborted if name not in standing]
        for name in aborted:
            del self.live[name]

    def _lingers(self, name: str) -> bool:
        return name in self.live and self.live[name].aborted

    def _check_preempted(self, preempted: Sequence[str]) -> None:
        for name in preempted:
            slots = self.tables.entries(name) if name in self.live else []
            self._check(laws.preemption_frees, [name], self.live, slots)
            self.live[name].fresh = self.live[name].preempted = True
            self.live[name].offered = []
            self._queue_again(name)
            self.goals_met["preempt"] += 1
            self.goals_met["preempt_in_flight"] += self.live[name].undelivered > 0
            if self.traits.drops_late_tokens:
                self._drop_late_tokens(name)
            self.goals_met["preempt_drafts"] += any(name in flight.accepted for flight in self.flights)

    def _drop_late_tokens(self, name: str) -> None:
        job = self.live[name]
        del job.request.tokens[job.prompt + job.delivered :]
        for flight in self.flights:
            flight.gained.pop(name, None)

    def _check_items(self, items: Sequence[Item], loading: set[str]) -> None:
        seen: set[str] = set()
        for item in items:
            self._check(laws.live_items, item.rid, self.live, seen)
            seen.add(item.rid)
            self._check_item(item, self.live[item.rid])
        self._check(laws.batch_limits, sum(item.n for item in items), len(items), *self._limits)
        if self.traits.policy is not None:
            waiting = [(job.rank, name) for name, job in self.live.items() if job.fresh and not job.undelivered]
            if self.transfers:
                loading |= self.transfers.loading()
                waiting = [(rank, name) for rank, name in waiting if name not in loading]
            for name in seen:
                job = self.live[name]
                # Who holds what was loaded for it may go first: it keeps others from that room.
                late = job.fresh and name not in self.holding
                before = [n for rank, n in waiting if rank < job.rank and n not in seen] if late else []
                # Who was overtaken while it was loaded for may be so again, if both are preempted.
                if self.transfers:
                    before = [n for n in before if not 0 < job.turn < self.live[n].turn]
                self._check(laws.admission_order, name, before, self.traits.policy)
        sampling = {item.samples for item in items if item.n == 1 or not item.samples}
        self.goals_met["chunk"] += False in sampling
        self.goals_met["mixed"] += any(item.n > 1 for item in items) and any(
            item.n == 1 and not self.live[item.rid].fresh for item in items
        )

    def _check_item(self, item: Item, job: Job) -> None:
        stop, known = item.start + item.n, len(job.request.tokens)
        known_and_drafts = known + item.drafts
        self._check(laws.continuity, item.start, stop, job.request.computed, known_and_drafts, job.fresh, name=item.rid)
        tokens = job.request.tokens + job.guesses(item)
        self._check(laws.input_tokens, item.tokens, tokens, item.start, name=item.rid)
        self._check(laws.sampling, item.samples, stop - item.drafts, known, item.drafts, name=item.rid)
        self._check(laws.coverage, len(item.slots), stop, name=item.rid)
        self._check(laws.held_tables, item.slots, self.tables.entries(item.rid), name=item.rid)

    def _forward(self, items: Sequence[Item], copies: Sequence[tuple[int, int]]) -> None:
        self.memory.copy(copies)
        free = self.tables.free()
        self.memory.poison(self.transfers.unpoisoned(free) if self.transfers else free)
        self.memory.begin_forward()
        written: set[int] = set()
        # The worker's tables: that the scheduler holds the same slots was checked with the items.
        tables = {item.rid: item.slots for item in items}
        for item in items:
            job, stop = self.live[item.rid], item.start + item.n
            if job.fresh:
                goals.notice_start(self.goals_met, job, item)
                job.turn = next(self._turns)
                job.request.hit = item.start
                job.fresh = job.preempted = False
            else:
                self.goals_met["behind_accepted"] += any(flight.accepted.get(item.rid) for flight in self.flights)
                self.goals_met["behind_rejected"] += any(flight.rejected.get(item.rid) for flight in self.flights)
            job.request.computed = item.start
            job.request.drafts = job.guesses(item)
            job.offered = []
            self._contents.write(job.request, tables, item.start, stop)
            written.update(slot // self.traits.block_size for slot in item.slots[item.start :])
        self.evaluated[laws.write_isolation.id] += len(items) > 1
        # All writes first: an item also depends on what others write in this batch, whatever their order is.
        for item in items:
            self._contents.read(self.live[item.rid].request, tables, item.start + item.n)
        for item in items:
            self.live[item.rid].request.computed = item.start + item.n - item.drafts
        self.memory.end_forward()
        if self._free_before is not None:
            fresh = len(written - self.occupancy.held) * self.traits.block_size
            self.goals_met["eviction"] += fresh > self._free_before

    def _sample(self, items: Sequence[Item], tokens: Sequence[int], accept: int) -> Flight:
        flight = Flight({item.rid for item in items}, {}, {}, {}, {})
        for item in items:
            job = self.live[item.rid]
            drafts, job.request.drafts = job.request.drafts, []
            if not item.samples:
                continue
            token = flight.sampled[item.rid] = tokens[len(flight.sampled) % len(tokens)]
            right = list(takewhile(lambda draft: draft != PAD_DRAFT, drafts))[:accept]
            if item.drafts:
                flight.accepted[item.rid] = len(right)
                flight.rejected[item.rid] = item.drafts - len(right)
                self.goals_met["drafts"] += 1
                self.goals_met["accepted_drafts"] += len(right) > 0
                self.goals_met["rejected_drafts"] += len(right) < item.drafts
            flight.gained[item.rid] = job.cut([*right, token])
            job.request.tokens += [*right, token]
            job.request.computed += len(right)
        return flight

    def _settle(self) -> None:
        """Checks everything that holds between the operations."""
        checks, occupancy, total = self._check, self.occupancy, self.traits.total
        # Requests that have ended stay where they are until their last batch has come back.
        leaving = {name for flight in self.flights for name in flight.names if name not in self.live}
        queues = self._call(self.adapter.queues)
        if leaving:
            queues = {queue: [name for name in names if name not in leaving] for queue, names in queues.items()}
        checks(laws.one_queue, queues, self.live)
        tables = {name: self.tables.entries(name) for name in (*self.live, *leaving)}
        held_before = occupancy.held
        occupancy.follow(tables)
        occupancy.freed = occupancy.given_back(held_before)
        goals.notice_sharing(self.goals_met, tables, self.traits.block_size)
        occupancy.check_lengths(tables)
        occupancy.check_conservation()
        avail, free = number(self.adapter.avail), self.tables.free()
        self.avail = avail
        held = occupancy.held_slots
        limbo = reserved = 0
        if self.transfers:
            self.holding = {name for name, job in self.live.items() if job.fresh and tables[name]}
            self.transfers.start(self.transfers.submitted(), self.live)
            idle = not self.live and not self.flights
            limbo, reserved = self.transfers.settle(free, occupancy.held, idle)
        elif self.traits.late_release:
            limbo = number(self.adapter.limbo)
        started = [name for name, job in self.live.items() if not job.fresh]
        checks(laws.no_double_free, free, self.traits.block_size)
        checks(laws.eviction_safety, free, occupancy.held, self.traits.block_size, tables, self.tables.entry_size)
        checks(laws.leak_freedom, avail, held, total, started, limbo)
        checks(laws.accounting, avail, held, total, limbo, reserved)
        for name in started:
            request = self.live[name].request
            checks(laws.coverage, min(len(tables[name]), request.computed), request.computed, name=name)
            self._contents.read(request, tables, request.computed)
        self.memory.poison(self.transfers.unpoisoned(free) if self.transfers else free)
        self._free_before = len(free) if self.tables.shows_free else None
        self.saw_evictable = self.saw_evictable or avail > len(free)
