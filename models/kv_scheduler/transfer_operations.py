"""Operations on the transfers of a kv_scheduler: each ends well, fails, or is heard of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kvlockstep.models.core.op import NotEnabled, require
from kvlockstep.models.kv_scheduler.copy_engine import Moving
from kvlockstep.models.kv_scheduler.one_table import OneTable
from kvlockstep.models.kv_scheduler.places import Place
from kvlockstep.models.kv_scheduler.transfers import Transfers
from kvlockstep.models.kv_scheduler.void import take_back
from kvlockstep.models.requests.adapter import answered, taken
from kvlockstep.models.requests.answers import DONE, Answer
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.transfers import Transfer

# Rounds of transfers that follow from one another, in which all end at once.
MOST_ROUNDS = 20


class TransferOperations(OneTable):
    """The operations of a trace that only a target with tiers has, and what the other ones need of its transfers.

    An operation raises Divergence if a law does not hold, and NotEnabled, with nothing changed, if it is not legal now.
    """

    def complete(self, transfer: int) -> Answer:
        """The n-th transfer in flight, the oldest is 0, ends; the scheduler is told."""
        return self._end(self._moving(transfer), None)

    def complete_all(self) -> Answer:
        """Every transfer in flight ends, the oldest first."""
        require(self.allows("complete_all"))
        transfers = self._transfers()
        ended = transfers.unended
        for moving in ended:
            transfers.end(moving)
        self.settle()
        ways = {"landed": [m for m in ended if not m.failed], "failed": [m for m in ended if m.failed]}
        said = [f"{', '.join(map(str, moved))} {way}" for way, moved in ways.items() if moved]
        return Answer(text="; ".join(said))

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

    def offer(self, tokens: Sequence[int], extra_key: int | None) -> Answer:
        """Another instance has computed these tokens, and fills the peer with their full blocks."""
        transfers, size = self._transfers(), self.traits.block_size
        require(self.allows("offer") and size <= len(tokens) <= self.longest)
        require(extra_key is None or self.traits.extra_key)
        found = answered(self.adapter.offer, list(tokens), extra_key)
        blocks = self.memory.blocks_of(extra_key, tokens, size)
        units = taken(
            lambda: _units(found, len(blocks)), found, self.adapter.offer, "a unit or None for each full block"
        )
        transfers.offered(units, blocks)
        self.settle()
        return Answer(text=f"units {','.join('-' if unit is None else str(unit) for unit in units)}")

    def lose(self, tier: str, unit: int) -> Answer:
        """A tier loses what a unit holds. Nobody is told; a load that reads it fails there."""
        transfers, place = self._transfers(), Place(tier, unit)
        require(self.allows("lose") and place in transfers.losable())
        transfers.places.lost.add(place)
        self.settle()
        return DONE

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
        transfers = self._transfers()
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

    def ended_by_itself(self, name: str) -> None:
        """A request ends by its last token: a durable scheduler has stored what it has computed, or is about to."""
        if self.transfers is None or not self.traits.durable:
            return
        job = self.live[name]
        tokens = job.request.tokens[: job.prompt + job.delivered - 1]
        blocks = self.memory.blocks_of(job.request.extra_key, tokens, self.traits.block_size)
        self.transfers.delivery.owe(name, blocks)
        self.goals_met["sent"] += len(blocks) > 0
        self.goals_met["sent_preempted"] += job.preempted and len(blocks) > 0

    def _transfers(self) -> Transfers:
        """Returns the transfers. Raises NotEnabled for a target without tiers."""
        if self.transfers is None:
            raise NotEnabled
        return self.transfers

    def _moving(self, transfer: int) -> Moving:
        unended = self._transfers().unended
        require(0 <= transfer < len(unended))
        return unended[transfer]

    def _end(self, moving: Moving, written: int | None) -> Answer:
        self._transfers().end(moving, written)
        self.settle()
        return Answer(text=f"{moving} {'failed' if moving.failed else 'landed'}")

    def _hear(self) -> None:
        ended, transfers = answered(self.adapter.poll), self._transfers()
        if self.traits.failed_loads == "end":
            expected = [name for name in self.live if name in transfers.failed()]
            ended = taken(
                lambda: [name for name in ended if name not in self._aborted], ended, self.adapter.poll, "ids"
            )
            self.checks.check(laws.ending, ended, expected)
            for name in expected:
                del self.live[name]
        transfers.heard()


def _units(found: Sequence[int | None], n: int) -> list[int | None]:
    """The answer to an offer of n blocks. Raises ValueError for another number of units."""
    units = [None if unit is None else int(unit) for unit in found]
    if len(units) != n:
        raise ValueError(units)
    return units
