"""Questions that the judge asks a kv_manager about itself, in one of four orders (rule 12)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kvlockstep.models.requests.adapter import number
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.tables import Tables
from kvlockstep.properties.kv_manager import laws

ASK_ORDERS = ("avail", "free_now", "slots", "late")


class Answers(NamedTuple):
    """The manager about itself. Tables and free list hold entries, `avail` and `free_now` count slots.

    `free` is None where the list is not worth asking for.
    """

    tables: dict[str, list[int]]
    free: list[int] | None
    avail: int
    free_now: int


class Questions:
    """Asks in the order `ask`; "late" asks nothing before an operation.

    A question can flush lazy work and so hide a bug, so no single order is right for every fault.
    """

    def __init__(self, adapter: Any, tables: Tables, checks: Checks, ask: str) -> None:
        self._adapter, self._tables, self._checks, self._ask = adapter, tables, checks, ask

    def before_operation(self) -> int | None:
        """Returns the available slots, None with "late"."""
        return None if self._ask == "late" else number(self._adapter.avail)

    def between_steps(self, live: Iterable[str]) -> Answers:
        """Asks every question, some of them twice. Raises Divergence if an answer changes."""
        ask, adapter = self._ask, self._adapter
        first: dict[str, Any] = {}
        # The question that `ask` names comes before the tables: reading them could do the work that it is to do.
        if ask == "avail":
            first["avail"] = number(adapter.avail)
        elif ask == "free_now":
            first["free_now"] = number(adapter.free_now)
        tables = {name: self._tables.entries(name) for name in live}
        due = self._tables.free_is_due()
        # Asked again below with only questions between, which may change nothing.
        if ask == "free_now" and due:
            first["free_slots"] = self._tables.free()
        free = self._tables.free() if due else None
        answers = Answers(tables, free, number(adapter.avail), number(adapter.free_now))
        again = {"avail": answers.avail, "free_now": answers.free_now, "free_slots": free}
        for what, answer in first.items():
            self._checks.check(laws.purity, answer, again[what], what)
        # Only here: a second reading at every settling would double what tables cost.
        if ask == "slots":
            for name in live:
                self._checks.check(laws.purity, tables[name], self._tables.entries(name), "slots")
        return answers
