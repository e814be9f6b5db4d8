"""Operations that end transfers: well, or by a failure."""

from __future__ import annotations

from typing import Any

from kvlockstep.models.core.op import NotEnabled, require
from kvlockstep.models.requests.answers import DONE, Answer
from kvlockstep.models.requests.transfers.moving import Moving
from kvlockstep.models.requests.transfers.places import Place
from kvlockstep.models.requests.transfers.transfers import Transfers


class EndsTransfers:
    """The part of a judge that ends transfers; `transfers` is None for a target without tiers.

    An operation raises Divergence if a law does not hold, and NotEnabled, with nothing changed, if it is not legal now.
    """

    transfers: Transfers | None
    traits: Any

    def complete(self, transfer: int) -> Answer:
        """The n-th transfer in flight, the oldest is 0, ends; the target is told."""
        return self._end(self._moving(transfer), None)

    def complete_all(self) -> Answer:
        """Every transfer in flight ends, the oldest first."""
        require(self.allows("complete_all"))
        transfers = self.tiered()
        ended = transfers.unended
        for moving in ended:
            transfers.end(moving)
        self.settle_behind()
        ways = {"landed": [m for m in ended if not m.failed], "failed": [m for m in ended if m.failed]}
        said = [f"{', '.join(map(str, moved))} {way}" for way, moved in ways.items() if moved]
        return Answer(text="; ".join(said))

    def fail(self, transfer: int) -> Answer:
        """The n-th transfer in flight fails, with nothing written."""
        moving = self._moving(transfer)
        require(self.may_fail(moving))
        return self._end(moving, 0)

    def tear(self, transfer: int, written: int) -> Answer:
        """The n-th transfer in flight is a load or a move that fails after its first `written` blocks."""
        moving = self._moving(transfer)
        require(self.may_tear(moving) and 0 < written < len(moving.targets))
        return self._end(moving, written)

    def lose(self, tier: str, unit: int) -> Answer:
        """A tier loses what a unit holds. Nobody is told; what reads it fails there."""
        transfers, place = self.tiered(), Place(tier, unit)
        require(self.allows("lose") and place in transfers.losable())
        transfers.places.lost.add(place)
        self.settle_behind()
        return DONE

    def allows(self, operation: str) -> bool:
        """Returns whether an operation is legal now, whatever its arguments are."""
        raise NotImplementedError

    def settle_behind(self) -> None:
        """Checks what holds behind an operation of transfers."""
        raise NotImplementedError

    def may_fail(self, moving: Moving) -> bool:
        """Returns whether a transfer in flight may fail now."""
        return self.tiered().may_fail(moving)

    def may_tear(self, moving: Moving) -> bool:
        """Returns whether a transfer in flight may fail now with its first blocks written."""
        return moving.reads_tier and len(moving.targets) > 1 and self.may_fail(moving)

    def tiered(self) -> Transfers:
        """Returns the transfers. Raises NotEnabled for a target without tiers."""
        if self.transfers is None:
            raise NotEnabled
        return self.transfers

    def _moving(self, transfer: int) -> Moving:
        unended = self.tiered().unended
        require(0 <= transfer < len(unended))
        return unended[transfer]

    def _end(self, moving: Moving, written: int | None) -> Answer:
        self.tiered().end(moving, written)
        self.settle_behind()
        return Answer(text=f"{moving} {'failed' if moving.failed else 'landed'}")
