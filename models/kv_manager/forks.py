"""Forks of an episode: which requests share a block, and the scripts of what they do next."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from kvlockstep.models.core.op import Op, Pick, one_in
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.scope import KVScope, Mode
from kvlockstep.models.requests.answers import Answer
from kvlockstep.models.requests.request import Request

# Commands that show how a block is shared and copied on a write, one script a line:
# the copy is withdrawn while the other request goes on, whose tokens are then looked up;
# the source of the copy is preempted before the copy runs;
# two families of siblings go on in one step;
# a block has several holders;
# siblings part, and the tokens of one of them are looked up.
LOOK_UP = ["admit", "forward"]
SCRIPTS = (
    ("decode", "decode", "withdraw", "forward", "finish", "decode", "forward", *LOOK_UP),
    ("decode", "preempt", "decode", "withdraw", "forward"),
    ("admit", "forward", "fork", "decode", "decode", "decode", "decode", "forward"),
    ("fork", "fork", "decode", "forward", "decode", "forward"),
    ("decode", "decode", "forward", "decode", "decode", "forward", "finish", *LOOK_UP),
)
# One command in so many that a script does not name is proposed all the same.
UNSCRIPTED = 16


class Forks:
    """The forks of one episode. `copied_on_write` are the requests scheduled in this step that write to a shared block.

    `withdrawn` is the last of them that was withdrawn. `script` are the next commands, if a script runs; scripts run
    only if the episode is `scripted`.
    """

    def __init__(self, scope: KVScope, judge: ManagerJudge) -> None:
        self.copied_on_write: list[str] = []
        self.withdrawn: str | None = None
        self.script: list[str] = []
        traits = judge.traits
        self._scope, self._judge = scope, judge
        self._size = traits.block_size
        self.scripted = scope.mode is Mode.FORKS and traits.can_fork and self._size > 1
        self._forked_at: dict[str, tuple[str, int]] = {}
        scripts = (script for script in SCRIPTS if traits.can_withdraw or "withdraw" not in script)
        self._scripts = itertools.cycle(scripts)

    def copies_on_write(self, op: Op) -> bool:
        """Returns whether an operation, if it is granted, writes to a block that others share."""
        return op.name in ("chunk", "decode") and bool(self.sharers(op.args["request"]))

    def note(self, op: Op, answer: Answer, copies_on_write: bool) -> None:
        """Records an executed operation with its answer, and the result of `copies_on_write` before it."""
        name, child = op.args.get("request"), op.args.get("child")
        if child in self._judge.live:
            self._note_fork(str(name), str(child))
        if self.scripted:
            self.script = self.script[1:] if self.script[:1] == [op.name] and not answer.refused else []
            self.script = self.script or self._next_script(child)
        if copies_on_write and name in self._judge.scheduled:
            self.copied_on_write.append(str(name))
        if op.name == "withdraw" and name in self.copied_on_write:
            self.copied_on_write.remove(str(name))
            self.withdrawn = name
        if not self._judge.scheduled:
            self.copied_on_write.clear()

    def siblings(self, name: str, other: str | None) -> bool:
        """Returns whether two requests parted at one fork."""
        return other is not None and name != other and self._forked_at.get(name, 0) == self._forked_at.get(other, 1)

    def sharers(self, name: str) -> list[str]:
        """Returns the requests that share the last block of this one, and have written nothing since the fork."""
        live = self._judge.live
        if name not in self._forked_at or name not in live or live[name].computed != self._forked_at[name][1]:
            return []
        return [other for other in live if self.siblings(name, other) and live[other].computed == live[name].computed]

    def urgent(self, idle: Iterable[Request]) -> list[Request]:
        """Returns requests to prefer, each twice: those that share their last block, and one that got it back.

        The latter was withdrawn, and has the block alone now.
        """
        if self._scope.exhaustive or not self._forked_at:
            return []
        shared = any(self.siblings(name, self.withdrawn) for name in self._judge.live)
        alone = None if shared else self.withdrawn
        return [r for r in idle for _ in range(2) if r.name == alone or self.sharers(r.name)]

    def follows_script(self, name: str, pick: Pick) -> bool:
        """Returns whether a command may come now: the next one of the script, or rarely another."""
        return not self.script or name == self.script[0] or one_in(UNSCRIPTED, pick, first=True)

    def _note_fork(self, parent: str, child: str) -> None:
        """Notes that a fork in the middle of a block has left two requests with one last block."""
        computed = self._judge.live[parent].computed
        if computed % self._size:
            if self._forked_at.get(parent, ("", 0))[1] != computed:
                self._forked_at[parent] = parent, computed
            self._forked_at[child] = self._forked_at[parent]

    def _next_script(self, child: str | None) -> list[str]:
        """Returns what leads to a fork in the middle of a block, or, behind one, the next of SCRIPTS."""
        live = self._judge.live.values()
        if child in self._forked_at:
            return list(next(self._scripts))
        if self._judge.scheduled:
            return ["forward"]
        if len(live) >= self._scope.live:
            return ["finish"]
        if any(r.computed % self._size for r in live):
            return ["fork"]
        return ["decode" if live else "admit", "forward", "fork"]
