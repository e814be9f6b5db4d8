"""Base of our managers: live requests by id, and block tables with copy-on-write.

A manager adds its own trick: how it finds a cached prefix, and which free block it takes next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from kvlockstep.impl.slots import slots_of


class DueCopy(NamedTuple):
    """A copy-on-write that waits for the forward: the `nth` block in the table of `rid` comes from `source`."""

    rid: str
    nth: int
    source: int


class TableRequest:
    """A live request: its block table, and how many of its tokens are computed.

    `kept` is the length of the table before this step's reservation, 0 in the step that admits the request.
    """

    __slots__ = ("computed", "kept", "table")

    def __init__(self, table: list[int], computed: int, kept: int = 0) -> None:
        self.table = table
        self.computed = computed
        self.kept = kept


AnyRequest = TypeVar("AnyRequest")
AnyTableRequest = TypeVar("AnyTableRequest", bound=TableRequest)


class RequestManager(ABC, Generic[AnyRequest]):
    """`blocks` blocks of `block_size` slots for the live requests in `_live`.

    Attributes: `total`, the number of slots, and `memory`, where a KV oracle writes, or None.
    """

    can_withdraw = can_fork = can_reset = can_evict_all = True

    _live: dict[str, AnyRequest]

    def __init__(self, blocks: int, block_size: int, *, tensors: bool = False, device: str = "cpu") -> None:
        self.block_size = block_size
        self.total = blocks * block_size
        self.memory = self._make_memory(blocks, device) if tensors else None
        self.reset()

    def _make_memory(self, blocks: int, device: str) -> Any:
        from kvlockstep.impl.kv_manager.tensors import KVTensors  # noqa: PLC0415  torch is an extra

        return KVTensors(self.total, device=device)

    @abstractmethod
    def reset(self) -> None:
        """Ends every request and forgets everything cached."""

    @abstractmethod
    def finish(self, rid: str) -> None:
        """Releases what the request holds; what it computed may stay cached."""

    def abort(self, rid: str) -> None:
        """Releases what the request holds; what was committed may stay cached."""
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        """Releases what the request holds; what it computed may still be cached when it comes back."""
        self.finish(rid)


class TableManager(RequestManager[AnyTableRequest]):
    """A manager whose requests have block tables. A block that several requests hold is copied before it is written.

    The source of a copy keeps its holder until `launch`, when the copy has run: nobody else can take it before.
    """

    chunk = extra_key = copies_at_reserve = True
    hash_trust = "tokens+parent"
    # The copy is this one of the blocks that a reservation takes. Any will do; block numbers in reports depend on it.
    _copy_at = 0

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        self._live = {}
        self._due: list[DueCopy] = []

    @abstractmethod
    def _free_count(self) -> int:
        """Counts the blocks that `_take` can take, blank or cached."""

    @abstractmethod
    def _is_shared(self, block: int) -> bool:
        """True if the block has more than one holder."""

    @abstractmethod
    def _take(self, n: int) -> list[int]:
        """Takes `n` free blocks, with one holder each; the caller knows that there are as many."""

    @abstractmethod
    def _hold(self, block: int) -> None:
        """The block gets one holder more."""

    @abstractmethod
    def _release(self, blocks: Sequence[int]) -> None:
        """Each block loses a holder, the last block first, so that the end of a prefix is evicted first."""

    @abstractmethod
    def _child_of(self, parent: AnyTableRequest, table: list[int]) -> AnyTableRequest:
        """A request with this table that knows and has computed what its parent has."""

    def reserve(self, rid: str, n: int) -> bool:
        """Takes blocks for the next `n` tokens; a shared block that they start in is copied first."""
        request = self._live[rid]
        table = request.table
        index = request.computed // self.block_size
        shared = index < len(table) and self._is_shared(table[index])
        missing = self._blocks_for(request.computed + n) - len(table)
        need = missing + shared if missing > 0 else int(shared)
        if need and need > self._free_count():
            return False
        request.kept = len(table)
        if need:
            taken = self._take(need)
            if shared:
                self._due.append(DueCopy(rid, index, table[index]))
                table[index] = taken.pop(self._copy_at)
            table += taken
        return True

    def copies(self) -> list[tuple[int, int]]:
        """The slot copies (source, target) of this step's copy-on-writes."""
        size = self.block_size
        pairs = [(due.source * size, self._live[due.rid].table[due.nth] * size) for due in self._due]
        return [(source + i, target + i) for source, target in pairs for i in range(size)]

    def launch(self) -> None:
        """The copies have run: their sources may go."""
        for due in self._due:
            self._release((due.source,))
        self._due.clear()

    def slots(self, rid: str) -> list[int]:
        """The slots of the request's blocks, in order."""
        return slots_of(self._live[rid].table, self.block_size)

    def blocks(self, rid: str) -> list[int]:
        """The request's block table."""
        return self._live[rid].table.copy()

    def finish(self, rid: str) -> None:
        """Releases the request's blocks; what is cached in them stays until the block is taken."""
        self._release(self._live.pop(rid).table)

    def withdraw(self, rid: str) -> None:
        """Takes back the request's admission or reservation of this step."""
        request = self._live[rid]
        for due in [due for due in self._due if due.rid == rid]:
            self._release((request.table[due.nth],))
            request.table[due.nth] = due.source
            self._due.remove(due)
        if not request.kept:
            self.finish(rid)
            return
        self._release(request.table[request.kept :])
        del request.table[request.kept :]

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        """The child shares every block that its parent has computed into; nothing is copied now."""
        parent = self._live[rid]
        table = parent.table[: self._blocks_for(parent.computed)]
        for block in table:
            self._hold(block)
        forked = self._live[child] = self._child_of(parent, table)
        forked.kept = len(table)
        return []

    def free_slots(self) -> Iterable[int] | None:
        """The slots of the blank blocks: free, with nothing cached in them."""
        return slots_of(self.free_blocks(), self.block_size)

    @abstractmethod
    def free_blocks(self) -> list[int]:
        """The blank blocks."""

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
