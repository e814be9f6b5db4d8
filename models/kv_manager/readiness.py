"""The commands that can propose something in a state, so that random episodes need not try the others in vain."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.models.core.op import Command
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.scope import KVScope, Mode


class Readiness:
    """The ready commands of one episode, each as often as in `table`.

    A command that is left out proposes nothing now. One that is ready may still propose nothing, where it leaves that
    to a pick.
    """

    def __init__(self, table: Iterable[Command], scope: KVScope, judge: ManagerJudge) -> None:
        self._live, self._judge = scope.live, judge
        self._may_run = scope.mode is not Mode.MANY
        never = {"evict_all", "reset", "fork"} if scope.mode is Mode.MANY else {"reset"} if scope.mode is Mode.LONG else set()
        traits = judge.traits
        has = {
            "chunk": traits.chunk,
            "withdraw": traits.can_withdraw,
            "fork": traits.can_fork,
            "evict_all": traits.can_evict_all,
            "reset": traits.can_reset,
        }
        self._table = tuple(c for c in table if has.get(c.name, True) and c.name not in never)
        self._known: dict[tuple[object, ...], tuple[Command, ...]] = {}

    def commands(self) -> tuple[Command, ...]:
        """Returns the commands that are ready now."""
        judge, live = self._judge, self._judge.live
        partial = decoding = idle = ending = False
        for request in live.values():
            remaining = len(request.tokens) - request.computed
            ending = ending or remaining <= 1
            if not request.pending:
                idle = True
                decoding = decoding or remaining <= 1
                partial = partial or remaining > 0
        room, between = len(live) < self._live, not judge.scheduled
        runs = self._may_run and not judge.admitting
        state = room, between, runs, bool(judge.preempted), partial, decoding, idle, ending, judge.last_admission is None
        known = self._known.get(state)
        if known is None:
            can = {
                "admit": room,
                "resume": room and judge.preempted,
                "chunk": runs and partial,
                "decode": runs and decoding,
                "preempt": runs and idle,
                "withdraw": judge.withdrawable(),
                "forward": not between,
                "finish": between and ending,
                "abort": between and live,
                "fork": between and room and live,
                "evict_all": between,
                "reset": between,
            }
            known = self._known[state] = tuple(c for c in self._table if can.get(c.name, True))
        return known
