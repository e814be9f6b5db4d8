"""Checks and counts the laws of one contract, among them those on KV memory, which both request contracts have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ParamSpec

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.request import Memory, Request, require_right
from kvlockstep.properties.kv_manager.laws import serving
from kvlockstep.properties.law import Law, law_error

P = ParamSpec("P")


class Checks:
    """Checks laws for a judge. `evaluated` counts how often each law, by its id, was evaluated.

    `laws` are those of the model. In place of a law given to `check`, the model's law of the same id is checked.
    `subject` is the request that is being looked at; after a Divergence it is the one concerned, or None.
    """

    def __init__(self, laws: Iterable[Law[Any]] = ()) -> None:
        self._laws = {law.id: law for law in laws}
        self.evaluated: Counter[str] = Counter()
        self.subject: str | None = None

    def check(self, law: Law[Any], *observed: Any, name: str | None = None) -> None:
        """Raises Divergence if the law does not hold; the message begins with `name`, if there is one."""
        self.evaluated[law.id] += 1
        law = self._laws.get(law.id, law)
        try:
            wrong = law.check(*observed)
        except Exception as error:
            raise law_error(law, error) from error
        if wrong is not None:
            raise Divergence(law.id, f"{name} {wrong}" if name else wrong)

    def holds(self, law: Law[Any], times: int = 1) -> None:
        """Counts evaluations of a law that the caller has found to hold in a cheaper way."""
        self.evaluated[law.id] += times

    def of(self, law: Law[P]) -> Law[P]:
        """Returns the model's law of this id; the law itself if the model has none."""
        return self._laws.get(law.id, law)


class Contents:
    """The KV memory of one target: requests write to it and read from it, and the laws see each write and read.

    `laws` is the module that declares the contract's laws. `transfer_laws` are further laws on what is read from a
    target with transfers. A table has one entry for every `entry_size` slots.
    """

    def __init__(
        self,
        memory: Memory,
        checks: Checks,
        laws: Any,
        block_size: int,
        entry_size: int,
        transfer_laws: tuple[Law[[Any]], ...] = (),
    ) -> None:
        self._memory, self._checks, self._laws = memory, checks, laws
        self._block_size, self._entry_size = block_size, entry_size
        self._transfer_laws = transfer_laws
        # content_equality fails for any wrong content, so the laws that name a cause come before it.
        content_laws = (*transfer_laws, laws.prefix_soundness, laws.write_isolation, laws.content_equality)
        self._content_laws: list[Law[[Any]]] = [checks.of(law) for law in content_laws]

    def write(self, request: Request, tables: Mapping[str, Sequence[int]], start: int, stop: int) -> None:
        """Writes positions [start, stop). Raises Divergence if another request of this forward wrote there (rule 4)."""
        law = self._laws.no_aliasing
        self._checks.evaluated[law.id] += 1
        conflict = self._memory.write(request, tables[request.name], start, stop)
        if conflict is not None:
            slot, other = conflict
            two = {name: tables[name] for name in (other, request.name)}
            self._checks.check(law, serving(slot, two, self._entry_size), slot, self._block_size)

    def read(self, request: Request, tables: Mapping[str, Sequence[int]], stop: int) -> None:
        """Reads positions [0, stop). Raises Divergence for the first that does not hold what a cold run writes."""
        laws, evaluated = self._laws, self._checks.evaluated
        evaluated[laws.prefix_soundness.id] += 0 < request.hit <= stop
        evaluated[laws.content_equality.id] += stop > 0
        for law in self._transfer_laws:
            evaluated[law.id] += stop > 0
        cell = self._memory.first_wrong(request, tables[request.name], stop)
        if cell is None:
            return
        itself = f"{request.name} position {cell.position}"
        served = serving(cell.slot, tables, self._entry_size)
        cell = cell._replace(also=tuple(other for other in served if other != itself))
        require_right(request, cell, self._content_laws)
