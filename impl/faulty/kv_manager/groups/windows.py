"""Faults of kv_manager with groups: what a window keeps, gives back and hits."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.groups.geometries import Chunked, FullAndWindow, TwoPools, TwoWindows
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.request import Request, to_hit, touched


class SlidesEarly(GroupedManager):
    """Slides as if one token more were computed."""

    def _slide(self, g: int, request: Request) -> None:
        request.computed += 1
        super()._slide(g, request)
        request.computed -= 1


@fault("kv-window-short", law="coverage", seen=("mutant",))
class WindowShort(SlidesEarly, FullAndWindow):
    """A window keeps one position too few."""


@fault("kv-chunk-early", law="coverage", seen=("mutant",))
class ChunkEarly(SlidesEarly, Chunked):
    """A chunk is given back one token before it ends."""


@fault("kv-window-never-slides", law="window_freed", seen=("mutant",))
class NeverSlides(FullAndWindow):
    """A window keeps every block, though it says that it frees them."""

    def _slide(self, g: int, request: Request) -> None:
        pass


@fault("kv-window-published-behind", law="window_freed", seen=("TensorRT-LLM#14478",))
class PublishedBehind(FullAndWindow):
    """A block that is published when its window has already left it stays with its request."""

    def reset(self) -> None:
        super().reset()
        self._published: dict[int, int] = {}
        self._left: dict[int, dict[int, int]] = {}

    def _publish(self, g: int, request: Request, place: int, block: int) -> None:
        super()._publish(g, request, place, block)
        if g:
            self._pool(g).hold(block)
            self._published[place] = block

    def _slide(self, g: int, request: Request) -> None:
        table, left = request.tables[g], self._left.setdefault(id(request), {}) if g else {}
        for place in left:
            table[place] = None
        super()._slide(g, request)
        for place, block in self._published.items() if g else ():
            if table[place] is None:
                left[place] = block
            else:
                self._pool(g).drop(block)
        self._published.clear()
        for place, block in left.items():
            table[place] = block

    def finish(self, rid: str) -> None:
        self._left.pop(id(self._live[rid]), None)
        super().finish(rid)


@fault("kv-window-gap-hit", law="coverage", seen=("vllm#57610",))
class GapHit(FullAndWindow):
    """A hit asks for the last block of a window only, not for all that the window still reads."""

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        if self.groups[g].kind == "full" or not to_hit(self.groups[g], cached):
            return super()._serves(g, tokens, extra_key, cached)
        last = to_hit(self.groups[g], cached)[-1]
        whole = (last + 1) * self.groups[g].block_size <= cached
        return whole and self._find(g, tokens, extra_key, last) is not None


@fault("kv-window-unasked", law="coverage", seen=("mutant",))
class WindowUnasked(FullAndWindow):
    """A hit asks the full group only."""

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        return g > 0 or super()._serves(g, tokens, extra_key, cached)


@fault("kv-window-null-freed", law="eviction_safety", seen=("vllm#22209",))
class NullFreed(FullAndWindow):
    """The release of a request frees block 0 for every placeholder of a position that has slid off."""

    def finish(self, rid: str) -> None:
        nulls = self._live[rid].tables[1].count(None)
        super().finish(rid)
        self._pool(1).free += [0] * nulls


@fault("kv-window-freed-twice", law="leak_freedom", seen=("vllm#42571",))
class FreedTwice(FullAndWindow):
    """A block that slid off stays in the list of blocks to release, and is freed again at the end."""

    def reset(self) -> None:
        super().reset()
        self._to_release: dict[int, list[int]] = {}

    def _slide(self, g: int, request: Request) -> None:
        before = request.held(g)
        super()._slide(g, request)
        gone = [block for block in before if block not in request.held(g)]
        self._to_release.setdefault(id(request), []).extend(gone)

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        super().finish(rid)
        self._pool(1).free += self._to_release.pop(id(request), [])


@fault("kv-window-stale-map", law="eviction_safety", seen=("sglang#25805",))
class StaleMap(TwoPools):
    """Freeing a full block frees the window block that it was once mapped to, whoever has that."""

    def reset(self) -> None:
        super().reset()
        self._map: dict[int, int] = {}

    def _grow(self, request: Request, n: int) -> None:
        super()._grow(request, n)
        for full, window in zip(*request.tables, strict=False):
            if full is not None and window is not None:
                self._map[full] = window

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        mapped = {self._map[block] for block in request.held(0) if block in self._map} - set(request.held(1))
        super().finish(rid)
        pool = self._pool(1)
        pool.free += [block for block in sorted(mapped) if pool.refs[block] and block not in pool.key_of]


@fault("kv-window-remap-late", law="accounting", seen=("sglang#36135",))
class RemapLate(FullAndWindow):
    """A block that slides off is freed at the next launch by its place, which is empty by then."""

    def reset(self) -> None:
        super().reset()
        self._late: list[tuple[Request, int]] = []

    def _slide(self, g: int, request: Request) -> None:
        if g:
            table = request.tables[g]
            for place in range(min(touched(self.groups[g], request.computed, request.computed).start, len(table))):
                self._late.append((request, place))
                table[place] = None

    def launch(self) -> None:
        super().launch()
        for request, place in self._late:
            if (block := request.tables[1][place]) is not None:
                self._pool(1).drop(block)
        self._late.clear()


@fault("kv-window-slid-evictable", law="accounting", seen=("sglang#34823",))
class SlidEvictable(FullAndWindow):
    """avail counts what has slid off a second time, as evictable."""

    def avail(self, pool: str = "") -> int:
        slid = sum(request.tables[1].count(None) for request in self._live.values())
        return super().avail(pool) + slid


@fault("kv-window-frees-shared", law="eviction_safety", seen=("mutant",))
class FreesShared(FullAndWindow):
    """A block that slides off is free at once, also if another request still reads it."""

    def _slide(self, g: int, request: Request) -> None:
        pool, before = self._pool(g), request.held(g)
        super()._slide(g, request)
        for block in before:
            if block not in request.held(g) and pool.refs[block] and block not in pool.key_of:
                pool.free.append(block)


@fault("kv-window-reset-one-group", law="reset_complete", seen=("transformers#31917",))
class ResetOneGroup(TwoPools):
    """reset forgets the full group only."""

    def reset(self) -> None:
        kept = getattr(self, "_pools", None)
        super().reset()
        if kept is not None:
            self._pools["window"] = kept["window"]


@fault("kv-window-copied-in-one-group", law="write_isolation", seen=("mutant",))
class CopiedInOneGroup(FullAndWindow):
    """A shared block is copied before it is written in the first group only."""

    def _shared(self, g: int, request: Request) -> int | None:
        return None if g else super()._shared(g, request)


@fault("kv-window-slides-on-refusal", law="atomicity", seen=("mutant",))
class SlidesOnRefusal(FullAndWindow):
    """A refused reservation has let its window slide to where it would have ended."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        granted = super().reserve(rid, n)
        if not granted:
            request.computed += n
            self._slide(1, request)
            request.computed -= n
        return granted


@fault("kv-window-small-as-large", law="coverage", seen=("mutant",))
class SmallAsLarge(TwoWindows):
    """Of two windows the larger one slides as far as the smaller one."""

    def _slide(self, g: int, request: Request) -> None:
        groups = self.groups
        self.groups = (*groups[:2], groups[2]._replace(reach=groups[1].reach))
        super()._slide(g, request)
        self.groups = groups


@fault("kv-window-tombstone-base", law="eviction_safety", seen=("sglang#27586",))
class TombstoneBase(TwoPools):
    """Publishing a block again frees the window block that the published one was mapped to."""

    def reset(self) -> None:
        super().reset()
        self._map: dict[int, int] = {}

    def _grow(self, request: Request, n: int) -> None:
        super()._grow(request, n)
        for full, window in zip(*request.tables, strict=False):
            if full is not None and window is not None:
                self._map.setdefault(full, window)

    def _publish(self, g: int, request: Request, place: int, block: int) -> None:
        published = self._find(g, request.tokens, request.extra_key, place)
        base = self._map.get(-1 if published is None or g else published)
        super()._publish(g, request, place, block)
        pool = self._pool(1)
        if published != block and base is not None and pool.refs[base] and base not in pool.key_of:
            pool.free.append(base)


@fault("kv-window-unlocked-early", law="accounting", seen=("sglang#28161",))
class UnlockedEarly(FullAndWindow):
    """A window that leaves a published block makes it evictable while another request has it."""

    def _slide(self, g: int, request: Request) -> None:
        pool, before = self._pool(g), request.held(g)
        super()._slide(g, request)
        for block in before:
            if block not in request.held(g) and pool.refs[block] and block in pool.key_of:
                pool.idle[block] = None
