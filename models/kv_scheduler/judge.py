"""Judges a kv_scheduler: runs the batches that it decides on the stamps memory, and checks the laws.

A batch is launched as soon as it is scheduled, so its copies, writes and reads happen then, and its tokens are
sampled then; the scheduler hears of them in `update`. Whatever else it does meanwhile comes after the forward.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.requests.adapter import Places, answered, number, read_traits
from kvlockstep.models.requests.answers import batch_text, freed_text
from kvlockstep.models.requests.request import Request, require_right
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties.kv_manager.laws import serving
from kvlockstep.properties.law import Law, counted, verdict
from kvlockstep.reference.kv_manager.contract import Traits
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, PAD_DRAFT, Batch, Item, SchedulerTraits

SHOWN_BATCHES = 8


@dataclass
class Job:
    """A live request. `request` has its true tokens, those in flight included; `delivered` the scheduler knows.

    `rank` orders it under the policy; it is `fresh` while it holds nothing, before its start or after a preemption.
    `offered` are drafts for its next batch. `aborted`: it ends with its next token, if not before.
    """

    request: Request
    max_tokens: int
    rank: tuple[int, int]
    prompt: int
    delivered: int = 0
    fresh: bool = True
    preempted: bool = False
    aborted: bool = False
    offered: list[int] = field(default_factory=list)

    @property
    def undelivered(self) -> int:
        return len(self.request.tokens) - self.prompt - self.delivered

    def cut(self, tokens: list[int]) -> list[int]:
        """The tokens that it gains of these: none behind its end."""
        left = tokens[: max(0, self.max_tokens + self.prompt - len(self.request.tokens))]
        return left[: left.index(END_TOKEN) + 1] if END_TOKEN in left else left

    @property
    def work(self) -> int:
        return self.prompt + self.max_tokens


class Flight(NamedTuple):
    """A batch in flight: who is in it, the token sampled for each that samples, and how many drafts were right.

    `gained` are the tokens that a request has by it: accepted drafts and the sampled one, up to the request's end.
    `rejected` counts the drafts that were wrong.
    """

    names: set[str]
    sampled: dict[str, int]
    accepted: dict[str, int]
    rejected: dict[str, int]
    gained: dict[str, list[int]]


class SchedulerJudge:
    """One scheduler under its users. Every public method is an operation of a trace and returns its answer as text.

    `budget` tokens and `running` requests are the most that a batch may have. Raises Divergence, or NotEnabled if
    the operation is not legal now.
    """

    _call = staticmethod(answered)

    def __init__(self, adapter: Any, budget: int, running: int) -> None:
        self.adapter = adapter
        self.traits = read_traits(adapter, SchedulerTraits)
        self.reach: Counter[str] = Counter()
        self.evaluated: Counter[str] = Counter()
        self.memory = SlotMemory(adapter, Traits(self.traits.block_size, self.traits.total), self.reach)
        self.live: dict[str, Job] = {}
        self.flights: deque[Flight] = deque()
        self.used_names: set[str] = set()
        self.longest = self.traits.max_length or self.traits.total
        self._aborted: set[str] = set()
        self.places = Places(adapter, self.traits.block_size, by_block=False)
        self.saw_evictable = False
        self.avail: int | None = None
        self._said = ""
        self._freed: set[int] = set()
        self._most_blocks = self._blocks_of_longest()
        self._limits = budget, running
        self._held: set[int] = set()
        self._blocks_seen: set[int] = set()
        self._free_before: int | None = None
        self._batches_without_token = 0
        self._arrivals = itertools.count()
        self._settle()

    def begin(self) -> None:
        """An operation begins: nothing of it is answered yet."""
        self.avail = None
        self._said = ""
        self._freed = set()

    @property
    def so_far(self) -> str:
        """What the last operation has answered, also if it failed on the way."""
        return " ".join(filter(None, (self._said, freed_text(self._freed))))

    def add(
        self, name: str, tokens: Sequence[int], extra_key: int | None, max_tokens: int, priority: int | None
    ) -> str:
        """A request arrives."""
        if name in self.used_names or not tokens or max_tokens < 1 or len(tokens) + max_tokens > self.longest:
            raise NotEnabled
        if (extra_key is not None and not self.traits.extra_key) or (priority and self.traits.policy != "priority"):
            raise NotEnabled
        rank = (priority or 0, next(self._arrivals))
        self.used_names.add(name)
        self._call(self.adapter.add, name, list(tokens), extra_key, max_tokens, priority or 0)
        self.live[name] = Job(Request(name, list(tokens), extra_key), max_tokens, rank, len(tokens))
        self._batches_without_token = 0
        self.reach["extra_key"] += extra_key is not None
        self._settle()
        return "done"

    @property
    def drafts_overlap(self) -> bool:
        """Whether batches are scheduled behind drafts that nobody but the device has judged."""
        return self.traits.drafts > 0 and self.traits.overlap > 1

    def may_abort(self) -> bool:
        """Whether an abort can come now."""
        when = self.traits.aborts
        return when == "any" or (when == "before_schedule" and len(self.flights) < self.traits.overlap)

    def may_draft(self) -> list[str]:
        """The requests that drafts can be offered for."""
        if not self.traits.drafts or self.flights:
            return []
        return [name for name, job in self.live.items() if not job.fresh and job.request.remaining == 1]

    def draft(self, name: str, tokens: Sequence[int]) -> str:
        """Drafts are offered for the next batch of a request that decodes."""
        if name not in self.may_draft() or not 0 < len(tokens) <= self.traits.drafts:
            raise NotEnabled
        self._offer(name, tokens)
        self._settle()
        return "done"

    def schedule(self, tokens: Sequence[int], accept: int = 0, drafts: Sequence[int] = ()) -> str:
        """A batch is decided and launched; its n-th request that samples gets the n-th of `tokens`, cyclically.

        Of each request's drafts the first `accept` are right. `drafts` are what the device drafts behind them.
        """
        if len(self.flights) >= self.traits.overlap or not tokens or not self.live:
            raise NotEnabled
        if drafts and not (self.drafts_overlap and len(drafts) <= self.traits.drafts):
            raise NotEnabled
        device = [[dict(flight.accepted) for flight in self.flights]] if self.drafts_overlap else []
        batch = Batch(*self._call(self.adapter.schedule, *device))
        items = [Item(*item) for item in batch.items]
        self._said = batch_text(items, batch.copies, batch.preempted)
        self._let_go()
        self._check_preempted(batch.preempted)
        if not self.flights:
            self._check(laws.progress, len(items), list(self.live))
        self._check_items(items)
        self._forward(items, batch.copies)
        flight = self._sample(items, tokens, accept)
        self.flights.append(flight)
        for name in flight.sampled if drafts else ():
            self._offer(name, drafts)
        self.reach["overlap"] += len(self.flights) > 1
        self._batches_without_token = 0 if flight.sampled or not items else self._batches_without_token + 1
        self._check(laws.liveness, self._batches_without_token, sum(job.work for job in self.live.values()))
        self._settle()
        return self.so_far

    def update(self) -> str:
        """The scheduler hears of the tokens of the oldest batch."""
        if not self.flights:
            raise NotEnabled
        flight = self.flights.popleft()
        expected = []
        for name, gained in flight.gained.items():
            job = self.live.get(name)
            self.reach["late_token"] += job is None
            self.reach["late_drafts"] += job is None and self.drafts_overlap and name in flight.accepted
            if job is not None:
                job.delivered += len(gained)
                if not job.aborted and (END_TOKEN in gained or job.delivered == job.max_tokens):
                    expected.append(name)
                    self.reach["ended_by_token"] += job.delivered < job.max_tokens
                    self.reach["ended_by_length"] += job.delivered == job.max_tokens
        accepted = [dict(flight.accepted)] if self.traits.drafts else []
        ended = self._call(self.adapter.update, dict(flight.sampled), *accepted)
        self._check(laws.ending, [name for name in ended if name not in self._aborted], expected)
        for name in expected:
            del self.live[name]
        self._let_go()
        self._check(laws.ending, [], [name for name, gained in flight.gained.items() if gained and self._lingers(name)])
        self._settle()
        return f"ended {','.join(expected)}" if expected else "done"

    def abort(self, name: str) -> str:
        """A request ends wherever it is."""
        if name not in self.live or self.live[name].aborted or not self.may_abort():
            raise NotEnabled
        job = self.live[name]
        job.aborted = True
        self._aborted.add(name)
        self._batches_without_token = 0
        self.reach["abort_waiting"] += job.fresh and not job.preempted
        self.reach["abort_preempted"] += job.preempted
        self.reach["abort_in_flight"] += any(name in flight.names for flight in self.flights)
        self._call(self.adapter.abort, name)
        self._let_go()
        self._settle()
        return "done"

    def reset(self) -> str:
        """Every content is dropped; live requests wait anew."""
        if not self.traits.can_reset or self.flights:
            raise NotEnabled
        self._call(self.adapter.reset)
        self.reach["reset_live"] += any(not job.fresh for job in self.live.values())
        queued = [name for names in self._call(self.adapter.queues).values() for name in names]
        for name in queued:
            if name in self.live and not self.live[name].fresh:
                self._queue_anew(name)
        for job in self.live.values():
            job.fresh = True
            job.offered = []
        self._batches_without_token = 0
        avail = number(self.adapter.avail)
        free = len(self.places.free()) if self.places.shows_free else avail
        self._check(laws.reset_complete, avail, free, self.traits.total)
        size = self.traits.block_size
        self.memory.reset([block * size + i for block in self._blocks_seen for i in range(size)])
        self._settle()
        return "done"

    def drain(self, tokens: Sequence[int]) -> str:
        """Batch after batch runs until every request has ended."""
        if self.flights or not self.live or not tokens:
            raise NotEnabled
        limit = 4 * sum(job.work for job in self.live.values()) + 20
        batches = 0
        shown: deque[str] = deque(maxlen=SHOWN_BATCHES)
        try:
            while self.live and batches < limit:
                shown.append(self.schedule(tokens))
                self.update()
                batches += 1
        except Divergence as wrong:
            last = "the last one" if len(shown) == 1 else "the last ones"
            lines = [f"after {counted(batches, 'batch')} of it, {last} {'; '.join(shown)}"] if shown else []
            raise Divergence(wrong.law, wrong.message, [*wrong.details, *lines]) from None
        self._check(laws.every_request_ends, list(self.live), batches)
        self.reach["drain"] += 1
        return counted(batches, "batch")

    def _offer(self, name: str, drafts: Sequence[int]) -> None:
        self.live[name].offered = list(drafts)
        self._call(self.adapter.draft, name, list(drafts))

    def _queue_anew(self, name: str) -> None:
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
            slots = self.places.table(name) if name in self.live else []
            self._check(laws.preemption_frees, [name], self.live, slots)
            self.live[name].fresh = self.live[name].preempted = True
            self.live[name].offered = []
            self._queue_anew(name)
            self.reach["preempt"] += 1
            self.reach["preempt_in_flight"] += self.live[name].undelivered > 0
            if self.traits.drops_late_tokens:
                self._drop_late_tokens(name)
            self.reach["preempt_drafts"] += any(name in flight.accepted for flight in self.flights)

    def _drop_late_tokens(self, name: str) -> None:
        job = self.live[name]
        del job.request.tokens[job.prompt + job.delivered :]
        for flight in self.flights:
            flight.gained.pop(name, None)

    def _check_items(self, items: Sequence[Item]) -> None:
        seen: set[str] = set()
        for item in items:
            self._check(laws.live_items, item.rid, self.live, seen)
            seen.add(item.rid)
            self._check_item(item, self.live[item.rid])
        self._check(laws.batch_limits, sum(item.n for item in items), len(items), *self._limits)
        if self.traits.policy is not None:
            waiting = [(job.rank, name) for name, job in self.live.items() if job.fresh and not job.undelivered]
            for name in seen:
                job = self.live[name]
                before = [n for rank, n in waiting if rank < job.rank and n not in seen] if job.fresh else []
                self._check(laws.admission_order, name, before, self.traits.policy)
        sampling = {item.samples for item in items if item.n == 1 or not item.samples}
        self.reach["chunk"] += False in sampling
        self.reach["mixed"] += any(item.n > 1 for item in items) and any(
            item.n == 1 and not self.live[item.rid].fresh for item in items
        )

    def _check_item(self, item: Item, job: Job) -> None:
        stop, known = item.start + item.n, len(job.request.tokens)
        known_and_drafts = known + item.drafts
        self._check(laws.continuity, item.start, stop, job.request.computed, known_and_drafts, job.fresh, name=item.rid)
        tokens = job.request.tokens + self._guesses(item, job)
        self._check(laws.input_tokens, item.tokens, tokens, item.start, name=item.rid)
        self._check(laws.sampling, item.samples, stop - item.drafts, known, item.drafts, name=item.rid)
        self._check(laws.coverage, len(item.slots), stop, name=item.rid)
        self._check(laws.held_tables, item.slots, self.places.table(item.rid), name=item.rid)

    def _guesses(self, item: Item, job: Job) -> list[int]:
        """The drafts that an item has if it is right: those that were offered, with padding where it has padding.

        Ids that it leaves out are the device's own.
        """
        fed = list(item.tokens[item.n - item.drafts :])
        offered = [*job.offered, *[PAD_DRAFT] * item.drafts]
        return [PAD_DRAFT if fed[i : i + 1] == [PAD_DRAFT] else offered[i] for i in range(item.drafts)]

    def _forward(self, items: Sequence[Item], copies: Sequence[tuple[int, int]]) -> None:
        self.memory.copy(copies)
        self.memory.poison(self.places.free())
        self.memory.begin_forward()
        written: set[int] = set()
        for item in items:
            job, stop = self.live[item.rid], item.start + item.n
            if job.fresh:
                self._notice_start(job, item)
                job.request.hit = item.start
                job.fresh = job.preempted = False
            else:
                self.reach["behind_accepted"] += any(flight.accepted.get(item.rid) for flight in self.flights)
                self.reach["behind_rejected"] += any(flight.rejected.get(item.rid) for flight in self.flights)
            job.request.computed = item.start
            job.request.drafts = self._guesses(item, job)
            job.offered = []
            self.evaluated[laws.no_aliasing.id] += 1
            conflict = self.memory.write(job.request, item.slots, item.start, stop)
            if conflict is not None:
                slot, other = conflict
                two = {i.rid: i.slots for i in items if i.rid in (other, item.rid)}
                self._check(laws.no_aliasing, serving(slot, two, 1), slot, self.traits.block_size)
            written.update(slot // self.traits.block_size for slot in item.slots[item.start :])
        self.evaluated[laws.write_isolation.id] += len(items) > 1
        tables = {item.rid: item.slots for item in items}
        for item in items:
            self._read(self.live[item.rid].request, tables, item.start + item.n)
        for item in items:
            self.live[item.rid].request.computed = item.start + item.n - item.drafts
        self.memory.end_forward()
        if self._free_before is not None:
            fresh = len(written - self._held) * self.traits.block_size
            self.reach["eviction"] += fresh > self._free_before

    def _notice_start(self, job: Job, item: Item) -> None:
        self.reach["hit"] += item.start > 0
        self.reach["resume"] += job.preempted
        self.reach["resume_with_output"] += job.preempted and job.delivered > 0

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
                self.reach["drafts"] += 1
                self.reach["accepted_drafts"] += len(right) > 0
                self.reach["rejected_drafts"] += len(right) < item.drafts
            flight.gained[item.rid] = job.cut([*right, token])
            job.request.tokens += [*right, token]
            job.request.computed += len(right)
        return flight

    def _read(self, request: Request, tables: Mapping[str, Sequence[int]], stop: int) -> None:
        self.evaluated[laws.prefix_soundness.id] += 0 < request.hit <= stop
        self.evaluated[laws.content_equality.id] += stop > 0
        cell = self.memory.first_wrong(request, tables[request.name], stop)
        if cell is not None:
            others = {name: table for name, table in tables.items() if name != request.name}
            cell = cell._replace(also=tuple(serving(cell.slot, others, 1)))
            require_right(request, cell, (laws.prefix_soundness, laws.write_isolation, laws.content_equality))

    def _settle(self) -> None:
        """Checks everything that holds between the operations."""
        size, total = self.traits.block_size, self.traits.total
        leaving = {name for flight in self.flights for name in flight.names if name not in self.live}
        queues = self._call(self.adapter.queues)
        if leaving:
            queues = {queue: [name for name in names if name not in leaving] for queue, names in queues.items()}
        self._check(laws.one_queue, queues, self.live)
        tables = {name: self.places.table(name) for name in (*self.live, *leaving)}
        self._check_tables(tables)
        avail, free = number(self.adapter.avail), self.places.free()
        self.avail = avail
        held = len(self._held) * size
        started = [name for name, job in self.live.items() if not job.fresh]
        self._check(laws.no_double_free, free, size)
        self._check(laws.eviction_safety, free, self._held, size, tables, 1)
        self._check(laws.leak_freedom, avail, held, total, started)
        self._check(laws.accounting, avail, held, total)
        for name, job in self.live.items():
            if not job.fresh:
                self._check(
                    laws.coverage, min(len(tables[name]), job.request.computed), job.request.computed, name=name
                )
                self._read(job.request, tables, job.request.computed)
        self.memory.poison(free)
        self._free_before = len(free) if self.places.shows_free else None
        self.saw_evictable = self.saw_evictable or avail > len(free)

    def _blocks_of_longest(self) -> int | None:
        """The blocks of the longest request, and of what is computed beyond its end while nobody has heard of it.

        The last token is sampled and not computed. Each batch in flight has one token more, and its drafts.
        """
        traits = self.traits
        if traits.max_length is None:
            return None
        tokens = traits.max_length - 1 + traits.overlap * (1 + traits.drafts)
        return -(-tokens // traits.block_size) + traits.lookahead_blocks

    def _check_lengths(self, tables: Mapping[str, Sequence[int]]) -> None:
        if self._most_blocks is None or not tables:
            return
        name = max(tables, key=lambda name: len(tables[name]))
        blocks = -(-len(tables[name]) // self.traits.block_size)
        self._check(laws.table_limit, name, blocks, self._most_blocks, self.traits.max_length)

    def _check_tables(self, tables: dict[str, list[int]]) -> None:
        size = self.traits.block_size
        before = self._held
        self._held = set()
        for name, table in tables.items():
            if len(set(table)) < len(table):
                twice = next(s for s in table if table.count(s) > 1)
                self._check(laws.no_aliasing, serving(twice, {name: table}, 1), twice, size)
            blocks = {slot // size for slot in table}
            self.reach["shared"] += not blocks.isdisjoint(self._held)
            self._held |= blocks
        self._freed = before - self._held
        self._blocks_seen |= self._held
        self._check_lengths(tables)
        self._check(laws.conservation, self._blocks_seen, self.traits.total, size)

    def _check(self, law: Law[Any], *observed: Any, name: str | None = None) -> None:
        self.evaluated[law.id] += 1
        if (wrong := verdict(law, *observed)) is not None:
            raise Divergence(law.id, f"{name} {wrong}" if name else wrong)
