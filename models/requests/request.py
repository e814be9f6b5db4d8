"""A request as a judge knows it, and the KV memory that it reads and writes for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvlockstep.models.core.model import Divergence
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.properties.law import Law, verdict
from kvlockstep.reference.kv.memory import UNWRITTEN, Provenance


@dataclass
class Request:
    """A request as the judge knows it. `computed` tokens have KV, `pending` more are reserved in this step.

    One that was `loaded` has computed nothing itself since its loads have ended.
    """

    name: str
    tokens: list[int]
    extra_key: int | None
    computed: int = 0
    pending: int = 0
    hit: int = 0
    drafts: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    admitted: bool = False
    loaded: bool = False

    @property
    def remaining(self) -> int:
        """Known tokens whose KV is not computed."""
        return len(self.tokens) - self.computed

    def forked(self, name: str) -> Request:
        """Returns a request that knows and has computed the same, between steps."""
        return Request(name, list(self.tokens), self.extra_key, self.computed, 0, self.hit, [], list(self.stamps))

    def stamped(self, provenance: Provenance, stop: int) -> list[int]:
        """Returns the stamps of at least `stop` known and drafted tokens. Those of rejected drafts are forgotten."""
        known = self.stamps
        del known[self.computed :]
        if len(known) < stop:
            tokens = (self.tokens + self.drafts)[len(known) : stop]
            known += provenance.extend(known[-1] if known else UNWRITTEN, self.extra_key, tokens)
        return known


def accepted_of(accept: int | dict[str, int] | None, name: str) -> int:
    """Returns the number of drafts that a forward accepts of a request: `accept` is for all, or by request."""
    return accept.get(name, 0) if isinstance(accept, dict) else accept or 0


class Memory(Protocol):
    """The KV memory that the judge reads and writes; see slot_memory and block_memory for both granularities.

    `granularity` says what an entry of a table is: "slot", or "block" for one entry per block, its first slot.
    `sparing`: the pool is so large that nobody asks for the whole free list at every step.
    `contents` are for a fingerprint, `sketch` is a quicker look at them whose hashes may collide.
    `when` names the fork that makes a copy, "" is the forward. `reset` poisons what a reset gives back.
    """

    granularity: str
    sparing: bool

    def write(self, request: Request, table: Sequence[int], start: int, stop: int) -> tuple[int, str] | None: ...
    def first_wrong(self, request: Request, table: Sequence[int], stop: int) -> Cell | None: ...
    def begin_forward(self) -> None: ...
    def end_forward(self) -> None: ...
    def copy(self, pairs: Sequence[tuple[int, int]], when: str = "") -> None: ...
    def poison(self, slots: Sequence[int]) -> None: ...
    def reset(self, slots: Sequence[int]) -> None: ...
    def contents(self) -> Any: ...
    def sketch(self) -> Any: ...


def require_right(request: Request, cell: Cell, content_laws: Sequence[Law[[Cell]]]) -> None:
    """Raises the violation of the first of the contract's laws that finds the cell wrong."""
    for law in content_laws:
        if wrong := verdict(law, cell):
            raise Divergence(law.id, f"{request.name} {wrong}")
