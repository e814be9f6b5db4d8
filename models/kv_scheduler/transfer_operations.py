"""Operations on the transfers of a kv_scheduler: what ends is heard of, and a peer fills and loses units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from kvlockstep.models.core.op import require
from kvlockstep.models.kv_scheduler.answers import names_of
from kvlockstep.models.kv_scheduler.items import looked_up, needing_moves
from kvlockstep.models.kv_scheduler.one_table import OneTable
from kvlockstep.models.kv_scheduler.void import take_back
from kvlockstep.models.requests.adapter import answered
from kvlockstep.models.requests.answers import DONE, Answer
from kvlockstep.models.requests.transfers.ends import EndsTransfers
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties import transfers as transfer_laws
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_scheduler.contract import Item

# Rounds of transfers that follow from one another, in which all end at once.
MOST_ROUNDS = 20


class TransferOperations(OneTable, EndsTransfers):
    """The operations of a trace that only a target with tiers has, and what the other ones need of its transfers.

    An operation raises Divergence if a law does not hold, and NotEnabled, with nothing changed, if it is not legal now.
    """

    def settle_behind(self) -> None:
        self.settle()

    def offer(self, tokens: Sequence[int], extra_key: int | None) -> Answer:
        """Another instance has computed these tokens, and fills the peer with their full blocks."""
        transfers = self.tiered()
        require(self.allows("offer") and len(tokens) <= self.longest)
        require(extra_key is None or self.traits.extra_key)
        rows = self.full_blocks(extra_key, tokens)
        require(any(rows))
        found = answered(self.adapter.offer, list(tokens), extra_key)
        units = self.offered_units(found, [len(row) for row in rows])
        for taken_units, row in zip(units, rows, strict=True):
            transfers.offered(taken_units, row)
        self.settle()
        said = [",".join("-" if unit is None else str(unit) for unit in row) for row in units]
        return Answer(text=f"units {'; '.join(said)}")

    def poll(self) -> Answer:
        """The scheduler takes in what has ended, and submits what is due."""
        require(self.allows("poll"))
        self._hear()
        self.settle()
        return DONE

    def end_all(self) -> None:
        """Everything in flight ends and is heard, and what is submitted then, too."""
        if self.transfers is None:
            return
        for _ in range(MOST_ROUNDS):
            for moving in self.transfers.unended:
                self.transfers.end(moving)
            self._hear()
            self.settle()
            if self.transfers.quiet:
                break

    def before_forward(
        self,
        items: Sequence[Item],
        submitted: Sequence[Transfer],
        copies: Sequence[Any],
        lost: int | None,
    ) -> None:
        """Starts what runs in front of the batch, waits as the worker does, and looks at what the batch writes."""
        transfers = self.tiered()
        transfers.start((transfer for transfer in submitted if transfer.before), self.live)
        transfers.wait(lost)
        transfers.check_writes("a copy", self.copied_blocks(copies))
        for item in items:
            transfers.check_writes(item.rid, self.written_blocks(item))
        for item in items:
            if self.live[item.rid].fresh:
                self.note_loaded(item, transfers.loaded_for(item.rid))
        blocks = {block for item in items for block in self.used_blocks(item)}
        transfers.launched([item.rid for item in items], blocks)

    def note_moves(self, items: int, submitted: Sequence[Transfer]) -> None:
        """A batch of so many items is decided: with nothing else in flight, moves are no reason to leave it empty.

        They hold no block of the pool. Only whom a move is for may wait, and not for ever. It is also for those who
        begin with what it brings to another one.
        """
        flying = [*(moving.transfer for moving in self.tiered().moving.values()), *submitted]
        waiting = {rid for transfer in flying if transfer.kind == "move" for rid in transfer.rids}
        self.goals_met["beside_move"] += items > 0 and any(
            name in waiting and job.fresh for name, job in self.live.items()
        )
        if self.flights or not flying or any(transfer.kind != "move" for transfer in flying):
            return
        waiting |= set() if items else needing_moves(self, submitted)
        names = [name for name in self.live if name in waiting and not items]
        self.waited = Counter({name: self.waited[name] + 1 for name in names})
        patience = self.traits.patience
        overdue = [] if patience is None else [name for name in names if self.waited[name] > patience]
        others = [name for name in self.live if name not in waiting]
        if self.traits.buffered and not items:
            crowded = looked_up(self)
            self.goals_met["kept_by_move"] += not crowded.isdisjoint(others)
            others = [name for name in others if name not in crowded]
        self.checks.check(transfer_laws.starvation, items, others, overdue)

    def hear_own(self, ended: Collection[str]) -> list[str]:
        """The oldest batch is back, and with it the ends of its own loads. Returns whom a failure has ended.

        What else has failed may have been heard of as well.
        """
        if self.transfers is None:
            return []
        void = take_back(self) if self.transfers.returned() else []
        if self.traits.failed_loads == "recompute":
            return []
        return [name for name in self.live if name in void or (name in ended and name in self.transfers.failed())]

    def ended_by_itself(self, name: str, beyond: int) -> None:
        """A request ends by its last token: a durable scheduler has stored what it has computed, or is about to.

        Its last batch has computed `beyond` tokens more: drafts that were right, and come behind the end.
        """
        if self.transfers is None or not self.traits.durable:
            return
        job = self.live[name]
        owed = self.owed_by(job, job.request.tokens[: job.prompt + job.delivered - 1], beyond)
        for part in owed:
            self.transfers.delivery.owe(part)
        any_block = any(part.blocks for part in owed)
        self.goals_met["sent"] += any_block
        self.goals_met["sent_preempted"] += job.preempted and any_block

    def _hear(self) -> None:
        ended, transfers = answered(self.adapter.poll), self.tiered()
        if self.traits.failed_loads == "end":
            expected = [name for name in self.live if name in transfers.failed()]
            ended = [name for name in names_of(ended, self.adapter.poll) if name not in self._aborted]
            self.checks.check(laws.ending, ended, expected)
            for name in expected:
                del self.live[name]
        transfers.heard()
