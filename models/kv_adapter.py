"""How a kv_manager is asked: its traits, calls that may not raise, and where it says that its requests lie."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from kvlockstep.models.model import Divergence, Factory, guarded
from kvlockstep.properties.law import ERROR_CONTRACT, Refused

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def make_adapter(factory: Factory, blocks: int, block_size: int) -> Any:
    """Calls a kv_manager factory; what it raises is a Divergence."""
    adapter = guarded(factory, blocks, block_size)
    if isinstance(adapter, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"the factory raised {adapter.error}")
    return adapter


def read_traits(adapter: Any, kind: type[T]) -> T:
    """The traits of this kind that an adapter declares; what it does not declare has its default."""
    return kind(**{f.name: getattr(adapter, f.name) for f in fields(kind) if hasattr(adapter, f.name)})


def answered(method: Callable[..., Any], *args: Any) -> Any:
    """Calls the adapter, none of whose calls may raise an error of a contract."""
    answer = guarded(method, *args)
    if isinstance(answer, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"{getattr(method, '__name__', method)} raised {answer.error}")
    return answer


def as_state(look: Callable[..., Any], *args: Any) -> Any:
    """What a look answers, or the law that it breaks: in a state that is told from others, nothing is judged."""
    try:
        return answered(look, *args)
    except Divergence as divergence:
        return divergence.law


class Places:
    """Block tables and free list of a kv_manager, as slots: all of them, or of each block the first (`by_block`).

    By block the tables come from `blocks(rid)`, the free list from `free_blocks()` if the adapter has one; a list that
    is the same as last time is not made again. An entry stands for `span` slots.
    """

    def __init__(self, adapter: Any, block_size: int, by_block: bool) -> None:
        self.by_block = by_block
        self.span = block_size if by_block else 1
        self.shows_free = not by_block or hasattr(adapter, "free_blocks")
        self._adapter = adapter
        self._tables: dict[str, tuple[list[int], list[int]]] = {}
        self._free: tuple[list[int], list[int]] = ([], [])

    def table(self, name: str) -> Sequence[int]:
        """Where the tokens of a request lie, in order, now."""
        if not self.by_block:
            slots = answered(self._adapter.slots, name)
            return slots if isinstance(slots, list) else [int(slot) for slot in slots]
        blocks = answered(self._adapter.blocks, name)
        known = self._tables.get(name)
        if known is None or known[0] != blocks:
            known = self._tables[name] = list(blocks), [block * self.span for block in blocks]
        return known[1]

    def free(self) -> list[int]:
        """What is free, in rising order; nothing if the manager does not say."""
        if not self.shows_free:
            return []
        if self.by_block:
            blocks = answered(self._adapter.free_blocks)
            if self._free[0] != blocks:
                self._free = list(blocks), sorted(block * self.span for block in blocks)
            return self._free[1]
        slots = answered(self._adapter.free_slots)
        if slots is None:
            self.shows_free = False
            return []
        return sorted(slots)

    def forget_but(self, names: Container[str]) -> None:
        """Forgets the tables of all other requests."""
        self._tables = {name: known for name, known in self._tables.items() if name in names}
