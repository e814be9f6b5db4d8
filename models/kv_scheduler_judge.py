"""Judges a kv_scheduler: runs the batches that it decides on the stamps memory, and checks the laws.

A batch is launched as soon as it is scheduled, so its copies, writes and reads happen then, and its tokens are
sampled then; the scheduler hears of them in `update`. Whatever else it does meanwhile comes after the forward.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvlockstep.models.kv_cells import SlotMemory
from kvlockstep.models.kv_judge import Request, answered, read_traits, require_right
from kvlockstep.models.model import Divergence
from kvlockstep.models.op import NotEnabled
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties.law import Law
from kvlockstep.reference.contracts import Traits
from kvlockstep.reference.scheduler_contract import END_TOKEN, Batch, Item, SchedulerTraits

SHOWN_BATCHES = 8


@dataclass
class Job:
    """A live request. `request` has its true tokens, those in flight included; `delivered` the scheduler knows.

    `rank` orders it under the policy; it is `fresh` while it holds nothing, before its start or after a preemption.
    """

    request: Request
    max_tokens: int
    rank: tuple[int, int]
    prompt: int
    delivered: int = 0
    fresh: bool = True
    preempted: bool = False

    @property
    def undelivered(self) -> int:
        return len(self.request.tokens) - self.prompt - self.delivered

    @property
    def work(self) -> int:
        return self.prompt + self.max_tokens


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
        self.memory = SlotMemory(adapter, Traits(self.traits.block_size, self.traits.total), self.reach)
        self.live: dict[str, Job] = {}
        self.flights: deque[dict[str, int]] = deque()
        self.used_names: set[str] = set()
        self.exposes_free_slots = True
        self.saw_evictable = False
        self._limits = budget, running
        self._held: set[int] = set()
        self._blocks_seen: set[int] = set()
        self._free_before: int | None = None
        self._batches_without_token = 0
        self._settle()

    def add(
        self, name: str, tokens: Sequence[int], extra_key: int | None, max_tokens: int, priority: int | None
    ) -> str:
        """A request arrives."""
        if name in self.used_names or not tokens or max_tokens < 1 or len(tokens) + max_tokens > self.traits.total:
            raise NotEnabled
        if (extra_key is not None and not self.traits.extra_key) or (priority and self.traits.policy != "priority"):
            raise NotEnabled
        rank = (priority or 0, len(self.used_names))
        self.used_names.add(name)
        self._call(self.adapter.add, name, list(tokens), extra_key, max_tokens, priority or 0)
        self.live[name] = Job(Request(name, list(tokens), extra_key), max_tokens, rank, len(tokens))
        self._batches_without_token = 0
        self.reach["extra_key"] += extra_key is not None
        self._settle()
        return "done"

    def schedule(self, tokens: Sequence[int]) -> str:
        """A batch is decided and launched; its n-th request that samples gets the n-th of `tokens`, cyclically."""
        if len(self.flights) >= self.traits.overlap or not tokens:
            raise NotEnabled
        batch = Batch(*self._call(self.adapter.schedule))
        self._check_preempted(batch.preempted)
        items = [Item(*item) for item in batch.items]
        if not self.flights:
            self._check(laws.progress, len(items), list(self.live))
        self._check_items(items)
        self._forward(items, batch.copies)
        sampled = self._sample(items, tokens)
        self.flights.append(sampled)
        self.reach["overlap"] += len(self.flights) > 1
        self._batches_without_token = 0 if sampled or not items else self._batches_without_token + 1
        self._check(laws.liveness, self._batches_without_token, sum(job.work for job in self.live.values()))
        self._settle()
        return _shown(items, batch.preempted)

    def update(self) -> str:
        """The scheduler hears of the tokens of the oldest batch."""
        if not self.flights:
            raise NotEnabled
        sampled = self.flights.popleft()
        expected = []
        for name, token in sampled.items():
            job = self.live.get(name)
            self.reach["late_token"] += job is None
            if job is not None:
                job.delivered += 1
                if token == END_TOKEN or job.delivered == job.max_tokens:
                    expected.append(name)
                    self.reach["ended_by_token"] += job.delivered < job.max_tokens
                    self.reach["ended_by_length"] += job.delivered == job.max_tokens
        self._check(laws.ending, list(self._call(self.adapter.update, dict(sampled))), expected)
        for name in expected:
            del self.live[name]
        self._settle()
        return f"ended {','.join(expected)}" if expected else "done"

    def abort(self, name: str) -> str:
        """A request ends wherever it is."""
        job = self.live.pop(name, None)
        if job is None:
            raise NotEnabled
        self.reach["abort_waiting"] += job.fresh and not job.preempted
        self.reach["abort_preempted"] += job.preempted
        self.reach["abort_in_flight"] += any(name in sampled for sampled in self.flights)
        self._call(self.adapter.abort, name)
        self._settle()
        return "done"

    def reset(self) -> str:
        """Every content is dropped; live requests wait anew."""
        if not self.traits.can_reset or self.flights:
            raise NotEnabled
        self._call(self.adapter.reset)
        self.reach["reset_live"] += any(not job.fresh for job in self.live.values())
        for job in self.live.values():
            job.fresh = True
        avail = self._call(self.adapter.avail)
        free = len(self._free_slots()) if self.exposes_free_slots else avail
        self._check(laws.reset_complete, avail, free, self.traits.total)
        size = self.traits.block_size
        self.memory.poison([block * size + i for block in self._blocks_seen for i in range(size)])
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
            lines = [f"after {batches} batches of it, the last ones {'; '.join(shown)}"] if shown else []
            raise Divergence(wrong.law, wrong.message, [*wrong.details, *lines]) from None
        self._check(laws.every_request_ends, list(self.live), batches)
        self.reach["drain"] += 1
        return f"{batches} batches"

    def _check_preempted(self, preempted: Sequence[str]) -> None:
        for name in preempted:
            slots = self._call(self.adapter.slots, name) if name in self.live else []
            self._check(laws.preemption_frees, [name], self.live, slots)
            self.live[name].fresh = self.live[name].preempted = True
            self.reach["preempt"] += 1
            self.reach["preempt_in_flight"] += self.live[name].undelivered > 0

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
        self._check(laws.continuity, item.start, stop, job.request.computed, known, job.fresh, name=item.rid)
        self._check(laws.input_tokens, item.tokens, job.request.tokens, item.start, name=item.rid)
        self._check(laws.sampling, item.samples, stop, known, name=item.rid)
        self._check(laws.coverage, len(item.slots), stop, name=item.rid)
        self._check(laws.held_tables, item.slots, self._call(self.adapter.slots, item.rid), name=item.rid)

    def _forward(self, items: Sequence[Item], copies: Sequence[tuple[int, int]]) -> None:
        self.memory.copy(copies)
        self.memory.poison(self._free_slots())
        self.memory.begin_forward()
        written: set[int] = set()
        for item in items:
            job, stop = self.live[item.rid], item.start + item.n
            if job.fresh:
                self._notice_start(job, item)
                job.request.hit = item.start
                job.fresh = job.preempted = False
            job.request.computed = item.start
            conflict = self.memory.write(job.request, item.slots, item.start, stop)
            if conflict is not None:
                slot, other = conflict
                self._check(laws.no_aliasing, [other, item.rid], slot)
            written.update(slot // self.traits.block_size for slot in item.slots[item.start :])
        for item in items:
            self._read(self.live[item.rid].request, item.slots, item.start + item.n)
        for item in items:
            self.live[item.rid].request.computed = item.start + item.n
        self.memory.end_forward()
        if self._free_before is not None:
            fresh = len(written - self._held) * self.traits.block_size
            self.reach["eviction"] += fresh > self._free_before

    def _notice_start(self, job: Job, item: Item) -> None:
        self.reach["hit"] += item.start > 0
        self.reach["resume"] += job.preempted
        self.reach["resume_with_output"] += job.preempted and job.delivered > 0

    def _sample(self, items: Sequence[Item], tokens: Sequence[int]) -> dict[str, int]:
        sampled: dict[str, int] = {}
        for item in items:
            if item.samples:
                sampled[item.rid] = tokens[len(sampled) % len(tokens)]
                self.live[item.rid].request.tokens.append(sampled[item.rid])
        return sampled

    def _read(self, request: Request, slots: Sequence[int], stop: int) -> None:
        cell = self.memory.first_wrong(request, slots, stop)
        if cell is not None:
            require_right(request, cell, (laws.prefix_soundness, laws.write_isolation, laws.content_equality))

    def _settle(self) -> None:
        """Checks everything that holds between the operations."""
        size, total = self.traits.block_size, self.traits.total
        self._check(laws.one_queue, self._call(self.adapter.queues), self.live)
        tables = {name: self._call(self.adapter.slots, name) for name in self.live}
        self._check_tables(tables)
        avail, free = self._call(self.adapter.avail), self._free_slots()
        held = len(self._held) * size
        self._check(laws.leak_freedom, avail, held, total)
        self._check(laws.accounting, avail, held, total)
        self._check(laws.no_double_free, free)
        self._check(laws.eviction_safety, free, self._held, size)
        for name, job in self.live.items():
            if not job.fresh:
                self._check(
                    laws.coverage, min(len(tables[name]), job.request.computed), job.request.computed, name=name
                )
                self._read(job.request, tables[name], job.request.computed)
        self.memory.poison(free)
        self._free_before = len(free) if self.exposes_free_slots else None
        self.saw_evictable = self.saw_evictable or avail > len(free)

    def _check_tables(self, tables: dict[str, list[int]]) -> None:
        size = self.traits.block_size
        self._held = set()
        for name, table in tables.items():
            if len(set(table)) < len(table):
                twice = next(s for s in table if table.count(s) > 1)
                self._check(laws.no_aliasing, [f"two positions of {name}"], twice)
            blocks = {slot // size for slot in table}
            self.reach["shared"] += not blocks.isdisjoint(self._held)
            self._held |= blocks
        self._blocks_seen |= self._held
        self._check(laws.conservation, self._blocks_seen, self.traits.total, size)

    def _free_slots(self) -> list[int]:
        slots = self._call(self.adapter.free_slots) if self.exposes_free_slots else None
        if slots is None:
            self.exposes_free_slots = False
            return []
        return sorted(slots)

    def _check(self, law: Law[Any], *observed: Any, name: str | None = None) -> None:
        if (wrong := law.check(*observed)) is not None:
            raise Divergence(law.id, f"{name} {wrong}" if name else wrong)


def _shown(items: Sequence[Item], preempted: Sequence[str]) -> str:
    """A batch as the end of a trace line."""
    parts = [f"{item.rid}[{item.start}:{item.start + item.n}]" for item in items]
    return " ".join([*parts, *(f"preempted {name}" for name in preempted)]) or "nothing"
