"""KV memory with one stamp per block, for managers that work in whole blocks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any, NamedTuple

from kvlockstep.models.requests.origins import HIT_AFTER_RESET, RESET, Copies
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.reference.kv.memory import POISON, UNWRITTEN
from kvlockstep.reference.kv_manager.traits import Traits


class Content(NamedTuple):
    """Content of a block: the KV of `tokens` from its first slot, after a history with the stamp `parent`.

    `stamp` is that of a full block; its tokens are an array then, 8 bytes each, so that memory stays small.
    """

    parent: int
    tokens: list[int] | array[int]
    stamp: int | None = None

    def head(self, n: int) -> list[int]:
        """The first `n` tokens, or as many as there are."""
        head = self.tokens[:n]
        return head if isinstance(head, list) else head.tolist()


class Written(NamedTuple):
    """Write of `writer` into one block in this forward: offset `start` up to the end of `content`."""

    writer: str
    start: int
    content: Content


BLANK = Content(UNWRITTEN, [])
FREED = Content(POISON, [])


class BlockMemory:
    """One stamp per block, for managers that work in whole blocks; an entry of a table is the first slot of a block.

    The stamp of a full block is a 64-bit digest of the stamp before it (at first: of the extra key) and of its tokens,
    so it stands for the whole history. For a block that is not full, the stamp before it and its tokens are compared.
    If a request writes behind content that is not its own history, only the part before the write stays. The writer
    reads it in the same forward, and a request that held more has lost it. A copy counts from offset 0 up to its first
    gap. Memory is bounded by blocks and live requests: the stamps of a request go with it. The adapter's own KV memory
    is not used.
    """

    granularity = "block"
    sparing = False

    def __init__(self, adapter: Any, traits: Traits, goals_met: Counter[str]) -> None:
        if getattr(adapter, "memory", None) is not None:
            adapter.memory = None
        self._size = traits.block_size
        self._goals_met = goals_met
        self._contents: dict[int, Content] = {}
        self._stamps: dict[int, int | None] = {}
        self._freed: set[int] = set()
        self._poisoned: Sequence[int] | None = None
        self._written: dict[int, list[Written]] = {}
        self._owner: dict[int, str] = {}
        self._copies = Copies()

    def begin_forward(self) -> None:
        self._written.clear()

    def end_forward(self) -> None:
        self._written.clear()
        self._copies.end_forward()

    def write(self, request: Request, table: Sequence[int], start: int, stop: int) -> tuple[int, str] | None:
        """Writes positions [start, stop); returns the slot and the first writer of a conflict (rule 4)."""
        size = self._size
        for index in range(start // size, -(-stop // size)):
            block, first = table[index], index * size
            written = Written(request.name, max(start - first, 0), self._wanted(request, index, stop))
            others = self._written.setdefault(block, [])
            for other in others:
                if (offset := _conflict(other, written)) is not None:
                    return block + offset, other.writer
            others.append(written)
            self._store(block, written)
            if self._owner.get(block, request.name) != request.name:
                self._goals_met["physical_reuse"] += 1
            self._owner[block] = request.name
        return None

    def first_wrong(self, request: Request, table: Sequence[int], stop: int) -> Cell | None:
        """The first of the positions [0, stop) that does not hold what it must."""
        full = stop // self._size
        want = self._history(request, full)
        if list(map(self._stamps.get, table[:full])) == want[:full]:
            first = full * self._size
            if first == stop:
                return None
            content = self._contents.get(table[full], BLANK)
            parent = want[full - 1] if full else _root(request)
            if content.parent == parent and content.head(stop - first) == _tokens(request, first, stop):
                return None
        return self._wrong_cell(request, table, stop)

    def copy(self, pairs: Sequence[tuple[int, int]], when: str = "") -> None:
        """Copies slot to slot; all sources are read before any target is written."""
        sources: dict[int, dict[int, int]] = {}
        for source, target in pairs:
            offset = target % self._size
            sources.setdefault(target - offset, {})[offset] = source
        copied = {target: self._copied(target, slots) for target, slots in sources.items()}
        for target, content in copied.items():
            self._put(target, content)
            for offset, source in sources[target].items():
                self._copies.note(source, target + offset, self._contents[target], when)

    def poison(self, slots: Sequence[int]) -> None:
        """Marks freed blocks, each named by its first slot; does nothing if these are poisoned already."""
        if slots is not self._poisoned:
            fresh = set(slots).difference(self._freed)
            self._contents.update(dict.fromkeys(fresh, FREED))
            self._stamps.update(dict.fromkeys(fresh))
            self._freed |= fresh
            self._poisoned = slots

    def reset(self, slots: Sequence[int]) -> None:
        self.poison(slots)
        self._owner.update(dict.fromkeys(self._owner.keys() & set(slots), RESET))

    def sketch(self) -> Any:
        return self.contents()

    def contents(self) -> Any:
        """Content of the memory, for the fingerprint of a state."""
        return tuple((block, c.parent, tuple(c.tokens)) for block, c in sorted(self._contents.items()))

    def _history(self, request: Request, blocks: int) -> list[int]:
        """The stamps of at least the first `blocks` whole blocks; those without drafts are kept in the request."""
        size, stamps = self._size, request.stamps
        while len(stamps) < blocks:
            first = len(stamps) * size
            if first + size > len(request.tokens) and stamps is request.stamps:
                stamps = stamps.copy()
            stamps.append(_digest(stamps[-1] if stamps else _root(request), _tokens(request, first, first + size)))
        return stamps

    def _wanted(self, request: Request, index: int, stop: int) -> Content:
        """Returns the content that block `index` of a request must have when positions [0, stop) are computed."""
        first, end = index * self._size, min(stop, (index + 1) * self._size)
        history = self._history(request, end // self._size)
        parent = history[index - 1] if index else _root(request)
        return Content(parent, _tokens(request, first, end), history[index] if end == first + self._size else None)

    def _store(self, block: int, written: Written) -> None:
        start, new = written.start, written.content
        old = self._contents.get(block, BLANK)
        if start and (old.parent != new.parent or old.head(start) != new.tokens[:start]):
            self._put(block, Content(old.parent, old.head(start)))
        elif old.parent != new.parent or old.head(len(new.tokens)) != new.tokens:
            self._put(block, new)

    def _put(self, block: int, content: Content) -> None:
        if content.stamp is not None:
            content = content._replace(tokens=array("q", content.tokens))
        if block in self._freed:
            self._freed.remove(block)
            self._poisoned = None
        self._contents[block] = content
        self._stamps[block] = content.stamp

    def _copied(self, target: int, sources: dict[int, int]) -> Content:
        """Returns the content of block `target` after slots were copied into it; `sources` has them by offset."""
        block = sources.get(0)
        if block is None or block % self._size:
            kept = self._contents.get(target, BLANK)
            return Content(kept.parent, kept.head(min(sources)))
        content = self._contents.get(block, BLANK)
        length = sum(1 for _ in takewhile(lambda i: sources.get(i) == block + i, range(self._size)))
        return content if length >= len(content.tokens) else Content(content.parent, content.head(length))

    def _wrong_cell(self, request: Request, table: Sequence[int], stop: int) -> Cell | None:
        for index, block in enumerate(table[: -(-stop // self._size)]):
            want = self._wanted(request, index, stop)
            content = self._contents.get(block, BLANK)
            same = _common(content.tokens, want.tokens) if content.parent == want.parent else 0
            if same < len(want.tokens):
                position = index * self._size + same
                writers = [w.writer for w in self._written.get(block, ()) if w.start <= same < len(w.content.tokens)]
                writer = writers[0] if writers else None
                hit, own, slot = position < request.hit, writer == request.name, block + same
                got, wanted = _name(content, same), _name(want, same)
                origin = self._copies.origin(slot, content, content is FREED)
                if not origin and hit and content is FREED and self._owner.get(block) == RESET:
                    origin = HIT_AFTER_RESET
                return Cell(position, slot, block // self._size, got, wanted, hit, own, writer, origin)
        return None


def _digest(parent: int, tokens: Sequence[int]) -> int:
    words = array("q", tokens).tobytes()
    return int.from_bytes(blake2b(parent.to_bytes(8, "little") + words, digest_size=8).digest(), "little")


def _root(request: Request) -> int:
    """The stamp before the first block."""
    return _digest(UNWRITTEN, [] if request.extra_key is None else [request.extra_key])


def _tokens(request: Request, start: int, stop: int) -> list[int]:
    """The request's tokens [start, stop), drafts included."""
    tokens = request.tokens[start:stop]
    known = len(request.tokens)
    return tokens + request.drafts[max(0, start - known) : stop - known] if stop > known else tokens


def _conflict(a: Written, b: Written) -> int | None:
    """The first offset into which two requests write different KV."""
    start, stop = max(a.start, b.start), min(len(a.content.tokens), len(b.content.tokens))
    same = _common(a.content.tokens, b.content.tokens) if a.content.parent == b.content.parent else 0
    return max(start, same) if start < stop and same < stop else None


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _name(content: Content, offset: int) -> str:
    if content is FREED:
        return "freed memory"
    if offset >= len(content.tokens):
        return "nothing"
    return f"the KV of token {content.tokens[offset]} at offset {offset} after the history {content.parent:016x}"
