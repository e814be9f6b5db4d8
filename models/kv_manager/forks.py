"""Requests that share the last block of one before a fork, and what is to come next for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from kvlockstep.models.core.op import NotEnabled, Op, Pick
from kvlockstep.models.kv_manager.judge import KVJudge
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.requests.request import Request

# Commands that tell how a block is shared and copied: what copies is taken back while the other goes on, whose tokens
# are then asked for; a source is given up meanwhile; two families go on in one step; a block has many holders; ways
# part, and one of them is asked for.
LOOK_UP = ["admit", "forward"]
AFTER_FORK = (
    ("decode", "decode", "withdraw", "forward", "finish", "decode", "forward", *LOOK_UP),
    ("decode", "preempt", "decode", "withdraw", "forward"),
    ("admit", "forward", "fork", "decode", "decode", "decode", "decode", "forward"),
    ("fork", "fork", "decode", "forward", "decode", "forward"),
    ("decode", "decode", "forward", "decode", "decode", "forward", "finish", *LOOK_UP),
)
RARELY = (True, *15 * (False,))


class Forks:
    """Of one episode. `torn` are the requests scheduled in this step for which a shared block may be copied.

    `returned` is the last of them that was withdrawn. `turns` are the commands that are to come next, if any are.
    """

    def __init__(self, scope: KVScope, judge: KVJudge) -> None:
        self.torn: list[str] = []
        self.returned: str | None = None
        self.turns: list[str] = []
        traits = judge.traits
        self._scope, self._judge = scope, judge
        self._size = traits.block_size
        self.leads = scope.forks and traits.can_fork and self._size > 1
        self._forked_at: dict[str, tuple[str, int]] = {}
        self._follow = itertools.cycle(t for t in AFTER_FORK if traits.can_withdraw or "withdraw" not in t)

    def tears(self, op: Op) -> bool:
        """Whether the operation is to write to a block that others share."""
        return op.name in ("chunk", "decode") and bool(self.sharers(op.args["request"]))

    def note(self, op: Op, answer: str, tears: bool) -> None:
        """Takes in an operation that was done; `tears` is what was answered before it was."""
        name, child = op.args.get("request"), op.args.get("child")
        if child in self._judge.live:
            self._note_fork(str(name), str(child))
        if self.leads:
            self.turns = self.turns[1:] if self.turns[:1] == [op.name] and answer != "refused" else []
            self.turns = self.turns or self._next_turns(child)
        if tears and name in self._judge.scheduled:
            self.torn.append(str(name))
        if op.name == "withdraw" and name in self.torn:
            self.torn.remove(str(name))
            self.returned = name
        if not self._judge.scheduled:
            self.torn.clear()

    def kin(self, name: str, other: str | None) -> bool:
        """Whether two requests parted at one fork."""
        return other is not None and name != other and self._forked_at.get(name, 0) == self._forked_at.get(other, 1)

    def sharers(self, name: str) -> list[str]:
        """The other requests that have written nothing since they began to share the last block of this one."""
        live = self._judge.live
        if name not in self._forked_at or name not in live or live[name].computed != self._forked_at[name][1]:
            return []
        return [other for other in live if self.kin(name, other) and live[other].computed == live[name].computed]

    def urgent(self, idle: Iterable[Request]) -> list[Request]:
        """Those that share their last block, and the one that was given it back and has it alone now, twice."""
        if self._scope.exhaustive or not self._forked_at:
            return []
        alone = None if any(self.kin(name, self.returned) for name in self._judge.live) else self.returned
        return [r for r in idle for _ in range(2) if r.name == alone or self.sharers(r.name)]

    def in_turn(self, name: str, pick: Pick) -> None:
        """While requests do what may follow a fork, anything else is rare. Raises NotEnabled."""
        if self.turns and name != self.turns[0] and not pick(RARELY):
            raise NotEnabled

    def _note_fork(self, parent: str, child: str) -> None:
        """Which requests a fork in the middle of a block has left with one last block."""
        computed = self._judge.live[parent].computed
        if computed % self._size:
            if self._forked_at.get(parent, ("", 0))[1] != computed:
                self._forked_at[parent] = parent, computed
            self._forked_at[child] = self._forked_at[parent]

    def _next_turns(self, child: str | None) -> list[str]:
        """What is to come next in a scope of forks: a fork in the middle of a block, and what follows one."""
        live = self._judge.live.values()
        if child in self._forked_at:
            return list(next(self._follow))
        if self._judge.scheduled:
            return ["forward"]
        if len(live) >= self._scope.live:
            return ["finish"]
        if any(r.computed % self._size for r in live):
            return ["fork"]
        return ["decode" if live else "admit", "forward", "fork"]
