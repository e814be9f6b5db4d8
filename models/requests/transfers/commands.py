"""Commands of the models of targets with tiers: which transfer ends next, and when none does for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvlockstep.models.core.op import Op, Pick, command, one_in, require
from kvlockstep.models.requests.transfers.moving import Moving


class TransferCommands:
    """A part of a model. The model names the commands again in its body, where their place is in its table."""

    judge: Any
    scope: Any
    _starved = 0

    @command(6, needs="tiers")
    def complete(self, pick: Pick) -> Op:
        """A transfer ends, or all of them do."""
        require(self._patient(pick))
        if not self.scope.exhaustive and one_in(4, pick):
            return Op("complete_all")
        return Op("complete", transfer=self._transfer(pick))

    @command(1, needs="tiers")
    def fail(self, pick: Pick) -> Op:
        """A transfer fails."""
        return Op("fail", transfer=self._transfer(pick, self.judge.may_fail))

    @command(1, needs="tiers")
    def tear(self, pick: Pick) -> Op:
        """A load or a move fails after its first blocks."""
        n = self._transfer(pick, self.judge.may_tear)
        return Op("tear", transfer=n, written=pick(range(1, len(self._unended()[n].targets))))

    @command(3, needs="tiers")
    def poll(self, pick: Pick) -> Op:
        """The target takes in what has ended."""
        return Op("poll")

    @command(1, needs="loses")
    def lose(self, pick: Pick) -> Op:
        """A tier loses a unit."""
        require(self.judge.allows("lose") and self.judge.transfers is not None)
        tier, unit = pick(self.judge.transfers.losable() if self.judge.transfers else [])
        return Op("lose", tier=tier, unit=unit)

    def _kept(self, pick: Pick, longest: int) -> tuple[list[int], int | None] | None:
        """At most `longest` tokens and the extra key of a request that begins with KV of a tier which the pool lacks.

        None in every second call, and if there is no such KV. Left to chance few requests load anything: what a tier
        has, the pool mostly has as well.
        """
        transfers = self.judge.transfers
        if transfers is None or self.scope.exhaustive or not one_in(2, pick) or not (kept := transfers.places.kept()):
            return None
        key, tokens = transfers.places.prefix(pick(kept))
        return [*tokens, pick(self.scope.tokens)][:longest], key

    def _unended(self) -> list[Moving]:
        return self.judge.transfers.unended if self.judge.transfers else []

    def _transfer(self, pick: Pick, may: Callable[[Moving], bool] = lambda _moving: True) -> int:
        """A transfer in flight that may end so: any, more often the oldest or the last one."""
        numbers = [n for n, moving in enumerate(self._unended()) if may(moving)]
        return int(pick(numbers if self.scope.exhaustive else [*numbers[:1], *numbers[-1:], *numbers]))

    def _patient(self, pick: Pick) -> bool:
        """Decides whether a transfer may end: now and then none does for a while, which is where things race."""
        if self.scope.exhaustive:
            return True
        if self._starved == 0:
            self._starved = pick((1, 1, 1, 2, 6))
        self._starved -= 1
        return self._starved == 0
