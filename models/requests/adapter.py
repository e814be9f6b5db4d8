"""How an adapter is asked: its traits, calls that may not raise, and where it says that its requests lie."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Container, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from kvlockstep.models.core.calls import call_target
from kvlockstep.models.core.model import Divergence, Factory
from kvlockstep.models.core.safe_text import safe_text
from kvlockstep.models.requests.known_table import KnownTable
from kvlockstep.models.requests.traits import as_number, taken_traits
from kvlockstep.properties.law import ERROR_CONTRACT, FREE_SLOTS, TERMINATION, Law, Refused

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
R = TypeVar("R")

# Listing free slots takes about as long as checking them, and each about twice as long as reading a table.
SPARING = 4


def make_adapter(factory: Factory, *sizes: int) -> Any:
    """Calls a factory with its sizes; what it raises is a Divergence."""
    adapter = call_target(factory, *sizes)
    if isinstance(adapter, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"the factory raised {adapter.error}")
    return adapter


def read_traits(adapter: Any, kind: type[T]) -> T:
    """The traits of this kind that an adapter declares; what it does not declare has its default. Raises Divergence."""
    declared, wrong = taken_traits(adapter, kind)
    if wrong:
        raise Divergence(ERROR_CONTRACT.id, "; ".join(wrong))
    return kind(**declared)


def not_checked(laws: Sequence[Law[Any]], traits: Any, places: Places) -> dict[str, str]:
    """The laws that need what the adapter does not expose: id to reason."""
    lacks = {FREE_SLOTS: not places.shows_free, **{f.name: not getattr(traits, f.name) for f in fields(traits)}}
    reasons = {law.id: need for law in laws for need in law.needs if lacks[need]}
    return {
        id_: "free_slots answers None" if need == FREE_SLOTS else f"the target declares no {need}"
        for id_, need in reasons.items()
    }


def named(adapter: Any) -> dict[str, str]:
    """What an adapter says of its engine and version, if they are texts."""
    said = {name: getattr(adapter, name, None) for name in ("engine", "version")}
    return {name: safe_text(text) for name, text in said.items() if isinstance(text, str)}


def answered(method: Callable[..., Any], *args: Any) -> Any:
    """Calls the adapter, none of whose calls may raise an error of a contract."""
    answer = call_target(method, *args)
    if isinstance(answer, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"{_name(method)} raised {answer.error}")
    return answer


def number(method: Callable[..., Any]) -> int:
    """What a call answers, which has to be a number."""
    answer = answered(method)
    return answer if type(answer) is int else _taken(lambda: as_number(answer), answer, method, "a number")


def numbers(method: Callable[..., Any], *args: Any) -> list[int] | None:
    """What a call answers, which has to be None or to hold numbers: a list, an array, an iterator."""
    answer = answered(method, *args)
    if answer is None or (type(answer) is list and (not answer or type(answer[0]) is int)):
        return answer
    return _taken(lambda: [int(n) for n in answer], answer, method, "numbers")


def pairs(method: Callable[..., Any], *args: Any) -> list[tuple[int, int]] | None:
    """What a call answers, which has to be None or to hold (source, target) pairs of slots."""
    answer = answered(method, *args)
    if answer is None:
        return None
    return _taken(lambda: [(int(s), int(t)) for s, t in answer], answer, method, "(source, target) pairs")


def events(method: Callable[..., Any]) -> list[Any]:
    """What a call answers, which has to hold events."""
    answer = answered(method)
    return _taken(lambda: list(answer), answer, method, "events")


def _taken(take: Callable[[], R | None], answer: Any, method: Callable[..., Any], wanted: str) -> R:
    """An answer in the form that the judge uses. An iterator may take long, or raise: it belongs to the target."""

    def attempt() -> R | None:
        try:
            return take()
        except (TypeError, ValueError):
            return None

    name = _name(method)
    found = call_target(attempt, called=f"taking what {name} answered")
    if found is None or isinstance(found, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"{name} answered {reprlib.repr(answer)}, not {wanted}")
    return found


def _name(method: Callable[..., Any]) -> str:
    return str(getattr(method, "__name__", method))


def as_state(look: Callable[..., Any], *args: Any) -> Any:
    """What a look answers, or the law that it breaks: in a state that is told from others, nothing is judged.

    Raises the Divergence of a look that does not return, since every further one would take as long.
    """
    try:
        return answered(look, *args)
    except Divergence as divergence:
        if divergence.law == TERMINATION.id:
            raise
        return divergence.law


class Places:
    """Block tables and free list of a kv_manager, as slots: all of them, or of each block the first (`by_block`).

    By block the tables come from `blocks(rid)`, the free list from `free_blocks()` if the adapter has one; a list that
    is the same as last time is not made again. An entry stands for `span` slots.

    With `sparing`, for a pool whose `total` slots take long to list, the free list is due when SPARING times as many
    entries of tables have been read since the last time, and of a table only what is new is looked at.
    """

    def __init__(self, adapter: Any, block_size: int, by_block: bool, sparing: bool = False, total: int = 0) -> None:
        self.by_block = by_block
        self.span = block_size if by_block else 1
        self.shows_free = not by_block or callable(getattr(adapter, "free_blocks", None))
        self._adapter = adapter
        self._tables: dict[str, tuple[list[int], list[int]]] = {}
        self._free: tuple[list[int], list[int]] = ([], [])
        self.sparing = sparing
        self._known: dict[str, KnownTable] = {}
        self._block_size = block_size
        self._until_due = SPARING * total

    def table(self, name: str) -> list[int]:
        """Where the tokens of a request lie, in order, now."""
        method = self._adapter.blocks if self.by_block else self._adapter.slots
        blocks = numbers(method, name)
        if blocks is None:
            raise Divergence(ERROR_CONTRACT.id, f"{_name(method)} answered None, not numbers")
        if not self.by_block:
            self._until_due -= len(blocks)
            return blocks
        known = self._tables.get(name)
        if known is None or known[0] != blocks:
            known = self._tables[name] = list(blocks), [block * self.span for block in blocks]
        return known[1]

    def free(self) -> list[int]:
        """What is free, in rising order; nothing if the manager does not say."""
        if not self.shows_free:
            return []
        if self.by_block:
            blocks = numbers(self._adapter.free_blocks) or []
            if self._free[0] != blocks:
                self._free = list(blocks), sorted(block * self.span for block in blocks)
            return self._free[1]
        slots = numbers(self._adapter.free_slots)
        if slots is None:
            self.shows_free = False
            return []
        self._until_due = SPARING * len(slots)
        return sorted(slots)

    def free_is_due(self) -> bool:
        """Whether the free list is worth asking for now."""
        return not self.sparing or self._until_due <= 0

    def known(self, name: str, table: list[int]) -> KnownTable:
        """The table of a request with the sets of its slots and blocks."""
        known = self._known.setdefault(name, KnownTable(self._block_size))
        known.follow(table)
        return known

    def forget_but(self, names: Container[str]) -> None:
        """Forgets the tables of all other requests."""
        self._tables = {name: known for name, known in self._tables.items() if name in names}
        self._known = {name: known for name, known in self._known.items() if name in names}
