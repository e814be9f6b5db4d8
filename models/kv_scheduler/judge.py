"""Judges a kv_scheduler: runs the batches that it decides on the stamps memory, and checks the laws.

A batch is launched as soon as it is scheduled, so its copies, writes and reads happen then, and its tokens are
sampled then; the scheduler hears of them in `update`. Whatever else it does meanwhile comes after the forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import require
from kvlockstep.models.kv_scheduler.answers import batch_of, names_of, queues_of
from kvlockstep.models.kv_scheduler.declared import undeclared
from kvlockstep.models.kv_scheduler.events import compare_starts, note_computed
from kvlockstep.models.kv_scheduler.forward import sample
from kvlockstep.models.kv_scheduler.items import check_items
from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.models.kv_scheduler.late import Late
from kvlockstep.models.kv_scheduler.transfer_operations import TransferOperations
from kvlockstep.models.kv_scheduler.void import void_items
from kvlockstep.models.requests.answers import DONE, Answer, batch_text
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.request import Request
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties.law import counted
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN

SHOWN_BATCHES = 8


class SchedulerJudge(TransferOperations):
    """One scheduler under its users. Every public method with an Answer is an operation of a trace.

    `budget` tokens and `running` requests are the most that a batch may have. An operation raises Divergence if a law
    does not hold, and NotEnabled, with nothing changed, if it is not legal now.
    """

    def __init__(self, adapter: Any, budget: int, running: int, checks: Checks | None = None) -> None:
        super().__init__(adapter, budget, running, checks)
        self._late = Late(self)
        self.prepare()
        self.settle()

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
        self.settle()
        return DONE

    def draft(self, name: str, tokens: Sequence[int]) -> Answer:
        """Drafts are offered for the next batch of a request that decodes."""
        require(name in self.draftable() and 0 < len(tokens) <= self.traits.drafts)
        self._offer(name, tokens)
        self.settle()
        return DONE

    def schedule(
        self, tokens: Sequence[int], accept: int = 0, drafts: Sequence[int] = (), lost: int | None = None
    ) -> Answer:
        """A batch is decided and launched; its n-th request that samples gets the n-th of `tokens`, cyclically.

        Of each request's drafts the first `accept` are right. `drafts` are what the device drafts behind them. Of the
        loads that the batch waits for the first fails, with `lost` blocks written; None lets none fail.
        """
        require(self.allows("schedule") and tokens)
        require(not drafts or (self.drafts_overlap and len(drafts) <= self.traits.drafts))
        device = [[dict(flight.accepted) for flight in self.flights]] if self.drafts_overlap else []
        schedule = self.adapter.schedule
        self._late.before()
        batch = batch_of(self._call(schedule, *device), schedule, self.grouped)
        items = batch.items
        transfers = self.transfers.submitted() if self.transfers else []
        self._said = batch_text(items, self.copies_text(batch.copies), batch.preempted)
        self._let_go()
        self.checks.check(laws.as_declared, undeclared(self.traits, self.live, batch))
        self._check_preempted(batch.preempted)
        # A scheduler that waits for a transfer may leave a batch empty, and may preempt for want of room.
        waits = self.transfers is not None and bool(self.transfers.moving or transfers)
        # So may one that has preempted for a request which holds what was loaded for it, and runs in the next batch.
        waits = waits or bool(batch.preempted and not items and self.holding)
        waits = self._late.excuses(len(items)) or waits
        if not self.flights and not waits:
            self.checks.check(laws.progress, len(items), list(self.live), self._late.limbo)
        if self.traits.moves and not batch.preempted:
            self.note_moves(len(items), transfers)
        check_items(self, items, transfers)
        compare_starts(self, items, transfers)
        if self.transfers:
            self.before_forward(items, transfers, batch.copies, lost)
        void = void_items(self, items)
        self.launch(items, batch.copies, void)
        flight = sample(self, items, tokens, accept, void)
        self.keep([item for item in items if item.rid not in void])
        if self.transfers:
            # They run behind the batch, and so behind the checkpoints that it copies.
            self.transfers.start((transfer for transfer in transfers if not transfer.before), self.live)
        self.flights.append(flight)
        for name in flight.sampled if drafts else ():
            self._offer(name, drafts)
        self.goals_met["overlap"] += len(self.flights) > 1
        self._batches_without_token = 0 if flight.sampled or not items or waits else self._batches_without_token + 1
        self.checks.check(laws.liveness, self._batches_without_token, sum(job.work for job in self.live.values()))
        self.settle()
        return Answer(text=self.so_far)

    def update(self) -> Answer:
        """The scheduler hears of the tokens of the oldest batch."""
        require(self.allows("update"))
        flight = self.flights.popleft()
        expected = []
        note_computed(self, flight.names)
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
        for name in expected:
            self.ended_by_itself(name, 1 + flight.accepted.get(name, 0) - len(flight.gained[name]))
        accepted = [dict(flight.accepted)] if self.traits.drafts else []
        update = self.adapter.update
        ended = names_of(self._call(update, dict(flight.sampled), *accepted), update)
        expected += self.hear_own(ended)
        self.checks.check(laws.ending, [name for name in ended if name not in self._aborted], expected)
        for name in expected:
            del self.live[name]
        self._let_go()
        lingering = [name for name, gained in flight.gained.items() if gained and self._lingers(name)]
        self.checks.check(laws.ending, [], lingering)
        self.settle()
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
        self.settle()
        return DONE

    def reset(self) -> Answer:
        """Every content is dropped; live requests wait again."""
        require(self.allows("reset"))
        if self.traits.in_steps:
            self.end_all()
        self._call(self.adapter.reset)
        self.goals_met["reset_live"] += any(not job.fresh for job in self.live.values())
        queued = [name for names in queues_of(self.adapter.queues).values() for name in names]
        for name in queued:
            if name in self.live and not self.live[name].fresh:
                self._queue_again(name)
        for job in self.live.values():
            job.fresh = True
            job.offered = []
        self._batches_without_token = 0
        self.check_reset()
        self.settle()
        return DONE

    def drain(self, tokens: Sequence[int]) -> Answer:
        """Batch after batch runs until every request has ended."""
        require(self.allows("drain") and tokens)
        limit = 4 * sum(job.work for job in self.live.values()) + 20
        batches = scheduled = 0
        shown: deque[str] = deque(maxlen=SHOWN_BATCHES)
        try:
            while self.live and batches < limit:
                self.end_all()
                shown.append(str(self.schedule(tokens)))
                scheduled += 1
                self.update()
                batches += not self._late.excused
            self.end_all()
        except Divergence as wrong:
            # The one that went wrong is not among them if `schedule` has raised this.
            which = "" if scheduled == len(shown) else ", the last ones"
            lines = [f"drained {counted(scheduled, 'batch')}{which}: {'; '.join(shown)}"] if shown else []
            raise Divergence(wrong.law, wrong.message, [*wrong.details, *lines]) from None
        self.checks.check(laws.every_request_ends, list(self.live), scheduled)
        self.goals_met["drain"] += 1
        return Answer(text=counted(scheduled, "batch"))

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
            standing = {name for names in queues_of(self.adapter.queues).values() for name in names}
            aborted = [name for name in aborted if name not in standing]
        for name in aborted:
            del self.live[name]

    def _lingers(self, name: str) -> bool:
        return name in self.live and self.live[name].aborted

    def _check_preempted(self, preempted: Sequence[str]) -> None:
        for name in preempted:
            slots = self.held_by(name) if name in self.live else []
            self.checks.check(laws.preemption_frees, [name], self.live, slots)
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
