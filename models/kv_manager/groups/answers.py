"""What a kv_manager with groups says about itself: tables and held blocks by group, counts and free blocks by pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.adapter import answered, method_name, number, numbers, taken
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv_manager.contract import Traits
from kvlockstep.reference.kv_manager.groups.contract import Step

# The slot of each position, None where there is none: by request, then by group.
Tables = dict[str, dict[int, list[int | None]]]
# The blocks that each request holds in each group, None if the manager cannot tell.
Held = dict[str, dict[int, set[int] | None]]
Copy = tuple[str, int, int]


class GroupAnswers(NamedTuple):
    """The manager about itself between two steps. `held` has the blocks by request and group; the rest is by pool."""

    tables: Tables
    held: Held
    free: dict[str, list[int]]
    avail: dict[str, int]
    free_now: dict[str, int]


class GroupQuestions:
    """Asks a manager with groups, in the order `ask` (see questions.ASK_ORDERS). Raises Divergence."""

    def __init__(self, adapter: Any, traits: Traits, checks: Checks, ask: str) -> None:
        self.groups = traits.groups
        self.pools = dict(traits.pools or {traits.groups[0].pool: traits.total // traits.groups[0].block_size})
        if unknown := {group.pool for group in self.groups} - set(self.pools):
            raise Divergence(ERROR_CONTRACT.id, f"groups name the pools {sorted(unknown)}, which `pools` lacks")
        self.attention = [g for g, group in enumerate(self.groups) if group.kind != "state"]
        self.states = [g for g, group in enumerate(self.groups) if group.kind == "state"]
        self.shows_free = True
        self._adapter, self._checks, self._ask = adapter, checks, ask
        self._several = traits.pools is not None

    def by_pool(self, method: Callable[..., Any], name: str) -> Any:
        """The method bound to a pool."""
        bound = (lambda: method(name)) if self._several else (lambda: method())  # noqa: PLW0108
        bound.__name__ = method_name(method)
        return bound

    def avail(self) -> dict[str, int]:
        return {name: number(self.by_pool(self._adapter.avail, name)) for name in self.pools}

    def free_now(self) -> dict[str, int]:
        return {name: number(self.by_pool(self._adapter.free_now, name)) for name in self.pools}

    def free(self) -> dict[str, list[int]]:
        """The free blocks of each pool, as far as the manager says."""
        found: dict[str, list[int]] = {}
        for name in self.pools if self.shows_free else ():
            blocks = numbers(self.by_pool(self._adapter.free_slots, name))
            self.shows_free = self.shows_free and blocks is not None
            found[name] = sorted(blocks or [])
        return found

    def tables(self, live: Iterable[str]) -> Tables:
        """The slots of each request in each attention group."""
        return {name: {g: self._slots(name, g) for g in self.attention} for name in live}

    def held(self, live: Iterable[str]) -> Held:
        """The blocks that each request holds in each group."""
        return {name: {g: self._held(name, g) for g in range(len(self.groups))} for name in live}

    def state(self, name: str, g: int) -> Step:
        """What this step does with a state."""
        method = self._adapter.state
        answer = answered(method, name, g)

        def step() -> Step:
            source, saves = answer
            return Step(None if source is None else int(source), [(int(p), int(block)) for p, block in saves])

        return taken(step, answer, method, "(source, [(position, block)])")

    def copies(self, method: Callable[..., Any], *args: Any) -> list[Copy] | None:
        """The copies that a method returns, each with its pool; None if it refuses."""
        answer = answered(method, *args)
        if answer is None:
            return None
        if self._several:
            return taken(
                lambda: [(str(p), int(s), int(t)) for p, s, t in answer], answer, method, "(pool, source, target)"
            )
        pool = next(iter(self.pools))
        return taken(lambda: [(pool, int(s), int(t)) for s, t in answer], answer, method, "(source, target) pairs")

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

    def _slots(self, name: str, g: int) -> list[int | None]:
        method = self._adapter.slots
        answer = answered(method, name, g)
        return taken(
            lambda: [None if slot is None else int(slot) for slot in answer], answer, method, "numbers and None"
        )

    def _held(self, name: str, g: int) -> set[int] | None:
        blocks = numbers(self._adapter.held, name, g)
        return None if blocks is None else set(blocks)
