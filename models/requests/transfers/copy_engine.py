"""The copy engine under a target, which the judge owns: the transfers in flight, and the laws on what they copy.

The target starts a transfer by reporting it. From then on the judge decides when its bytes land, and whether they do.
The target hears of the end later: when a worker waits for a transfer, its bytes land, but the target is not told.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import are_ints, wholes
from kvlockstep.models.requests.adapter import answered
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.transfers.answers import ids_of
from kvlockstep.models.requests.transfers.delivery import Delivery
from kvlockstep.models.requests.transfers.moving import Moving, placed
from kvlockstep.models.requests.transfers.places import Block, Place, Places
from kvlockstep.models.requests.transfers.races import Races, is_own
from kvlockstep.models.requests.transfers.traits import TransferTraits
from kvlockstep.properties import transfers as laws
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.properties.transfers import Source
from kvlockstep.reference.kv.memory import IN_FLIGHT, LOST, POISON, VOID
from kvlockstep.reference.kv.transfers import TierUnits, Transfer

# A target with `in_steps` has submitted everything that is due after so many steps without a batch.
STEPS_TO_SUBMIT = 2


class CopyEngine:
    """The transfers of one target that are in flight, between `places`, whose contents it does not look into.

    `has_own`: some batch had loads of its own. Kinds of transfers seen so far: `apart` were in flight longer than the
    call or batch that submitted them, `fallible` could fail, and `tearable` could also fail with some blocks written.
    `loaded_inside` are the requests for which a call has loaded, and waited, since the last batch. Methods raise
    Divergence if a law does not hold.
    """

    def __init__(
        self, adapter: Any, traits: TransferTraits, places: Places, checks: Checks, goals_met: Counter[str]
    ) -> None:
        self._adapter, self.traits, self.places = adapter, traits, places
        self._checks, self._goals_met = checks, goals_met
        self._sizes = traits.tiers
        # A batch or a poll submits what is due. With `in_steps`, what one step decides is submitted in the next.
        self.delivery = Delivery(STEPS_TO_SUBMIT if traits.in_steps else 1)
        self.races = Races(goals_met)
        self._offered: set[Place] = set()
        self._moved: set[Place] = set()
        self._loads: Counter[str] = Counter()
        self._fetched: dict[str, list[Any]] = {}
        self._loaded: dict[str, set[Block]] = {}
        self._batches: deque[tuple[list[str], set[Block], list[Hashable]]] = deque()
        self._own: list[Hashable] = []
        self.has_own = False
        self.apart: set[str] = set()
        self.fallible: set[str] = set()
        self.tearable: set[str] = set()
        self.loaded_inside: set[str] = set()
        self.failed_unheard: list[Hashable] = []
        self.void_cells: set[Any] = set()
        self.moving: dict[Hashable, Moving] = {}
        self._fresh_loads: list[Moving] = []
        self._ended_loads: list[Moving] = []

    @property
    def unended(self) -> list[Moving]:
        """The transfers that can still end, the oldest first."""
        return [moving for moving in self.moving.values() if not moving.told]

    def may_fail(self, moving: Moving) -> bool:
        """Returns whether it may still fail: the traits allow it, and its bytes have not landed."""
        return not moving.landed and self.traits.may_fail(moving.transfer)

    def start(self, transfers: Iterable[Transfer], live: Collection[str]) -> None:
        """Starts these transfers, in this order."""
        for transfer in transfers:
            self._wait_for(transfer.after, "after")
            moving = placed(transfer, self.traits, self.places, self.moving, self._adapter.transfers)
            self._start(moving, live)
            if transfer.waited:
                self._end_waited(moving)

    def wait(self, lost: int | None = None) -> None:
        """The worker waits for the transfers that the target names. The target is not told of it.

        Only the batch's own loads end by that. Unless `lost` is None, the first of them fails with `lost` blocks
        written.
        """
        self._own = self._wait_for(ids_of(self._adapter.waits), "waits", lost)

    def _wait_for(self, ids: Collection[Hashable], said: str, lost: int | None = None) -> list[Hashable]:
        """The worker waits for these. Returns those of them that are the batch's own loads, which end by that."""
        own: list[Hashable] = []
        for id in ids:
            moving = self.moving.get(id)
            if moving is None:
                raise Divergence(ERROR_CONTRACT.id, f"{said} names {id!r}, which is no transfer in flight")
            self._goals_met["waited"] += not moving.landed
            if not moving.landed:
                self.races.waited(moving)
            if is_own(moving) and not moving.told:
                self.has_own = True
                fails = lost is not None and not own and self.may_fail(moving)
                written = min(lost or 0, moving.readable) if fails else moving.readable
                if fails or written < len(moving.targets):
                    self._fail_own(moving, min(written, len(moving.targets) - 1))
                else:
                    self.end(moving)
                own.append(id)
            else:
                self._land(moving, moving.readable)
        return own

    def _end_waited(self, moving: Moving) -> None:
        """Ends a transfer for which the submitting call has waited: it has landed, and the target knows."""
        if moving.readable < len(moving.targets):
            raise Divergence(ERROR_CONTRACT.id, f"{moving} is waited for, of a tier that has lost what it reads")
        if moving.transfer.kind == "load":
            self.loaded_inside.update(moving.transfer.rids)
        self._goals_met["waited"] += 1
        self._goals_met[moving.transfer.kind] += 1
        self._ended_loads += [moving] if moving.transfer.kind == "load" else []
        self._land(moving, moving.readable)
        del self.moving[moving.transfer.id]

    def _fail_own(self, moving: Moving, written: int) -> None:
        """A load that the batch waits for fails; the target hears of it when the batch is back."""
        self._goals_met["own_load_fails"] += 1
        self.void_cells.update(cell for place in moving.targets[written:] for cell in self.places.cells(place))
        self.failed_unheard.append(moving.transfer.id)
        self.end(moving, written)

    def check_writes(self, name: str, blocks: Iterable[Block]) -> None:
        """Checks that no transfer in flight reads or fills a block that a batch, named `name`, writes."""
        written = set(blocks)
        block: Block = 0
        of = ""
        unended = self.unended if written else []
        self.races.written(written, unended)
        for moving in unended:
            pool = moving.sources if moving.transfer.kind == "store" else moving.targets
            untouched = moving.landed or moving.transfer.kind == "move"
            hit = [] if untouched else [place.unit for place in pool if place.unit in written]
            if hit:
                block, of = hit[0], str(moving)
                break
        self._checks.check(laws.transfer_isolation, name, block, of)

    def end(self, moving: Moving, written: int | None = None) -> None:
        """Ends a transfer and tells the target. It fails if `written` is given: only so many blocks are written.

        It also fails at the first source that was lost in its tier.
        """
        unended = self.unended
        self._goals_met["reordered"] += not is_own(moving) and moving is not unended[0]
        self.races.ended(moving, unended)
        if moving.readable < len(moving.targets):
            written = moving.readable if written is None else min(written, moving.readable)
        if written is None:
            self._goals_met[moving.transfer.kind] += 1
            self._ended_loads += [moving] if moving.transfer.kind == "load" else []
        else:
            self._goals_met[f"{moving.transfer.kind}_fails"] += 1
            self._goals_met["torn" if moving.transfer.kind != "move" else "move_torn"] += written > 0
            # Its request may load again, or compute: that is progress, so its loads are counted from 0.
            self.forget_loads()
        self._land(moving, len(moving.targets) if written is None else written)
        moving.told, moving.failed = True, written is not None
        landed = [len(moving.targets) if written is None else written] if self.traits.partial_loads else []
        answered(self._adapter.complete, moving.transfer.id, written is None, *landed)

    def _start(self, moving: Moving, live: Collection[str]) -> None:
        transfer, check = moving.transfer, self._checks.check
        moving.contents = [self.places.read(place) for place in moving.sources]
        together = not self.loading().isdisjoint(transfer.rids)
        lost = [i for i, place in enumerate(moving.sources) if place in self.places.lost]
        moving.readable = lost[0] if lost else len(moving.sources)
        self._goals_met["lost"] += bool(lost)
        self._goals_met["offered"] += not self._offered.isdisjoint(moving.sources)
        self._goals_met["moved_load"] += transfer.kind == "load" and not self._moved.isdisjoint(moving.sources)
        for place, content in zip(moving.sources, moving.contents, strict=True):
            if place in self.places.lost:
                continue
            if transfer.kind == "store" and self.traits.durable:
                self.delivery.sent(self.places.identity(content))
            source = Source(str(moving), str(place), self.places.in_words(content))
            check(laws.load_before_read, source)
            check(laws.failure_visible, source)
            if moving.reads_tier:
                check(laws.backed, str(moving), str(place), self._lacking(place, content, transfer.waited))
        unended = self.unended
        self.races.started(moving, unended, [place in self.places.stored for place in moving.targets])
        others = [other for other in unended if not other.landed]
        for place in moving.targets:
            # One evaluation for all other transfers: many may be in flight.
            owner = next((f"a target of {other}" for other in others if place in other.targets), "")
            check(laws.target_owned, str(moving), str(place), owner)
            read = next((str(other) for other in others if place in other.sources), "")
            check(laws.source_stable, read, str(place), f"{moving} overwrites it" * bool(read))
            if transfer.kind == "load" and not self.traits.ordered:
                batch = next((names for names, blocks, _ in self._batches if place.unit in blocks), [])
                check(laws.stream_order, str(moving), place.unit, batch)
            self._goals_met["tier_eviction"] += transfer.kind != "load" and place in self.places.stored
            self._offered.discard(place)
            (self._moved.add if transfer.kind == "move" else self._moved.discard)(place)
            self.places.fill(place, IN_FLIGHT)
        # Transfers that are in flight together are one load.
        busy = {rid for other in unended for rid in other.transfer.rids}
        for rid in transfer.rids:
            new = self._is_new(moving, rid)
            self._loads[rid] += rid not in busy and not new
            check(laws.transfer_progress, rid, self._loads[rid], (len(live) + 1) * max(1, len(self.traits.groups)))
            if transfer.kind == "load":
                before = self._loaded.get(rid, set()) if together else set()
                self._loaded[rid] = before.union(place.unit for place in moving.targets)
        several = len(transfer.pairs) > 1 or not busy.isdisjoint(transfer.rids)
        self._goals_met["load_blocks"] += transfer.kind == "load" and several
        self.apart.update(() if is_own(moving) or transfer.waited else (transfer.kind,))
        if self.traits.may_fail(transfer) and not transfer.waited:
            self.fallible.add(transfer.kind)
            self.tearable.update((transfer.kind,) if len(transfer.pairs) > 1 else ())
        self.moving[transfer.id] = moving
        self._fresh_loads += [moving] if transfer.kind == "load" else []

    def _land(self, moving: Moving, written: int) -> None:
        """The bytes of the first `written` pairs arrive; the others hold garbage from now on."""
        if moving.landed:
            return
        moving.landed = True
        for n, (place, content) in enumerate(zip(moving.sources, moving.contents, strict=True)):
            changed = "is overwritten" if self.places.read(place) != content else ""
            self._checks.check(laws.source_stable, str(moving), str(place), changed and f"it {changed}")
            # Nobody may see after a reset what was stored before it, not even what a load has kept.
            if moving.stale and place.tier is not None and not self._is_read(place):
                self.places.fill(place, POISON)
            arrives = self.places.filled(POISON) if moving.stale else content
            left = VOID if moving.transfer.id in self.failed_unheard else LOST
            self.places.write(moving.targets[n], arrives if n < written else self.places.filled(left))

    def forget_loads(self) -> None:
        """Something other than a load has happened, so loads for each request are counted from 0 again."""
        self._loads.clear()
        self._fetched.clear()

    def _is_new(self, moving: Moving, rid: str) -> bool:
        """Returns whether this is a move that brings its tier something new for the request, and notes that.

        A fetch may take many moves, one after the other, and through several tiers.
        """
        fetched = self._fetched.setdefault(rid, [])
        brought = [(moving.transfer.tier, content) for content in moving.contents]
        new = [one for one in brought if one not in fetched]
        fetched += new if moving.transfer.kind == "move" else []
        return moving.transfer.kind == "move" and bool(new)

    def _is_read(self, place: Place) -> bool:
        return any(place in moving.sources and not moving.landed for moving in self.moving.values())

    def _lacking(self, place: Place, content: Any, over: bool) -> str:
        """What is wrong with a unit as the source of a load or a move. If that is `over`, the unit may be free."""
        if not over and place.unit in self._view(place.tier or "").free:
            return "is free"
        return "holds nothing of this cache" if self.places.is_nothing(content) else ""

    def _view(self, name: str) -> TierUnits:
        found = answered(self._adapter.tier, name)
        # Nearly every answer has plain lists of ints; the general path below would cost a tenth of a step.
        if type(found) is TierUnits and all(map(are_ints, found)):
            return TierUnits(*map(list, found))
        return taken(lambda: TierUnits(*map(wholes, found)), found, self._adapter.tier, "the units of a tier")

    def loading(self) -> set[str]:
        """Returns the requests that a load, or a move, is for."""
        return {rid for moving in self.moving.values() for rid in moving.transfer.rids}
