"""Commands of the model of a kv_manager with tiers: requests that wait for a load are asked for, or leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvlockstep.models.core.op import Op, Pick, command, require
from kvlockstep.models.requests.transfers.commands import TransferCommands


class LoadingCommands(TransferCommands):
    """A part of the model, which names the commands again in its body."""

    @command(5, needs="tiers")
    def ready(self, pick: Pick) -> Op:
        """A request that loads is asked for."""
        return Op("ready", request=pick(list(self.judge.loading)))

    @command(1, when=lambda self, _: not self.scope.exhaustive, needs="tiers")
    def abort_loading(self, pick: Pick) -> Op:
        """A request is aborted that waits for a load."""
        require(self.judge.allows("abort"))
        return Op("abort", request=pick(list(self.judge.loading)))

    @command(1, needs="tiers")
    def preempt_loading(self, pick: Pick) -> Op:
        """A request is preempted that waits for a load."""
        require(not self.judge.admitting and not (self.scope.exhaustive and self.judge.preempted))
        return Op("preempt", request=pick(list(self.judge.loading)))

    @command(1, needs="moves")
    def abort_fetching(self, pick: Pick) -> Op:
        """A request is aborted that waits for a fetch."""
        require(self.judge.allows("abort"))
        return Op("abort", request=pick(list(self.judge.fetching)))

    def loading_state(self, table_of: Callable[[str], Any] = lambda _name: None) -> tuple[Any, ...]:
        """What a state has of the requests that wait for a load, and of those that have computed nothing since."""
        loading, live = self.judge.loading, self.judge.live
        waiting = tuple((tuple(r.tokens), r.extra_key, r.hit, table_of(name)) for name, r in loading.items())
        fetching = tuple(self.judge.fetching[name] for name in self.judge.preempted)
        return waiting, tuple(r.loaded for r in live.values()), fetching
