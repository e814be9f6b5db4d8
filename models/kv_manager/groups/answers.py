"""What a kv_manager with groups says about itself, between two steps and of what is scheduled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.adapter import answered
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.groups.answers import Copy, GroupQuestions, Held, Tables, step_of
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.traits import Traits


class GroupAnswers(NamedTuple):
    """The manager about itself between two steps. `held` has the blocks by request and group; the rest is by pool."""

    tables: Tables
    held: Held
    free: dict[str, list[int]]
    avail: dict[str, int]
    free_now: dict[str, int]


class ManagerQuestions(GroupQuestions):
    """Asks a manager with groups, in the order `ask` (see questions.ASK_ORDERS). Raises Divergence."""

    def __init__(self, adapter: Any, traits: Traits, checks: Checks, ask: str) -> None:
        super().__init__(adapter, traits)
        self._checks, self._ask = checks, ask

    def free_now(self) -> dict[str, int]:
        return self.counts(self._adapter.free_now)

    def state(self, name: str, g: int) -> Step:
        """What this step does with a state."""
        method = self._adapter.state
        step = step_of(answered(method, name, g), method)
        if step.checkpoints or step.commits:
            said = f"a step of {name} has checkpoints or commits: a kv_manager copies, with copies_at_commit"
            raise Divergence(ERROR_CONTRACT.id, said)
        return step

    def copies(self, method: Callable[..., Any], *args: Any) -> list[Copy] | None:
        """The copies that a method returns, each with its pool; None if it refuses."""
        answer = answered(method, *args)
        return None if answer is None else self.pooled(answer, method)

    def before_operation(self) -> Mapping[str, int] | None:
        """Returns the available blocks of each pool, None with "late"."""
        return None if self._ask == "late" else self.avail()

    def between_steps(self, live: Iterable[str]) -> GroupAnswers:
        """Asks every question, some of them twice. Raises Divergence if an answer changes."""
        ask = self._ask
        first: dict[str, Any] = {}
        if ask == "avail":
            first["avail"] = self.avail()
        elif ask == "free_now":
            first["free_now"] = self.free_now()
        names = list(live)
        tables = self.tables(names)
        if ask == "free_now":
            first["free_slots"] = self.free()
        answers = GroupAnswers(tables, self.held(names), self.free(), self.avail(), self.free_now())
        again: dict[str, Any] = {"avail": answers.avail, "free_now": answers.free_now, "free_slots": answers.free}
        for what, answer in first.items():
            self._checks.check(laws.purity, answer, again[what], what)
        if ask == "slots":
            self._checks.check(laws.purity, tables, self.tables(names), "slots")
        return answers
