"""A part of managers and schedulers with two tiers: a host tier, and a disk behind it.

A unit of the host tier that a store has filled is copied to the disk, and stays where it is until it is evicted. What
is on the disk only is fetched to the host tier for a request, from where it is loaded like anything else there.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.tier import HOST, Key, Store, Tier
from kvlockstep.reference.kv_manager.transferring import Transferring

DISK = "disk"


class Move(NamedTuple):
    """A move in flight: the blocks, the units that it reads, and whom it is for, nobody if it goes to the disk."""

    keys: list[Key]
    units: list[int]
    rid: str | None


class Moving(Transferring):
    """Moves of one target, which makes `_disk`, `_moves`, `_fetched` and `_ids`, and names this base first.

    `_fetched` are the requests that were fetched for since they were last admitted: that happens once.
    """

    moves = True
    loses: bool | tuple[str, ...] = (DISK,)
    disk_type = Tier

    _disk: Tier
    _moves: dict[Hashable, Move]
    _fetched: set[str]
    _ids: itertools.count[int]

    def poll(self) -> None:
        for id, ok in self._completed:
            if id in self._moves:
                self._end_move(self._moves.pop(id), ok)
        self._completed = [(id, ok) for id, ok in self._completed if id in self._stores or id in self._loads]
        super().poll()

    def tier(self, name: str) -> TierUnits:
        return self._disk.units() if name == DISK else super().tier(name)

    def _tier_size(self, blocks: int) -> int:
        return max(1, blocks // 2)

    def _end_store(self, store: Store, ok: bool) -> None:
        super()._end_store(store, ok)
        if ok:
            self._back_up(store.key)

    def _back_up(self, key: Key) -> None:
        """Submits a move of a unit to the disk; drops it if the disk has the block, or no room."""
        unit = self._tier.find(key)
        target = None if unit is None or self._disk.knows(key) else self._disk.begin_store(key)
        if unit is not None and target is not None:
            self._tier.begin_load(key)
            self._move(HOST, DISK, [(unit, target)], Move([key], [unit], None))

    def _fetch(self, rid: str, keys: Sequence[Key]) -> bool:
        """Submits a move of what the disk has of these blocks, behind those of the host; False if it is nothing."""
        wanted = itertools.dropwhile(lambda key: self._tier.find(key) is not None, keys)
        found = list(itertools.takewhile(self._on_disk_only, wanted))
        pairs: list[tuple[int, int]] = []
        for key in found:
            unit, target = self._disk.find(key), self._tier.begin_store(key)
            if unit is None or target is None:
                break
            self._disk.begin_load(key)
            pairs.append((unit, target))
        if not pairs:
            return False
        self._fetched.add(rid)
        self._move(DISK, HOST, pairs, Move(found[: len(pairs)], [unit for unit, _ in pairs], rid))
        return True

    def _on_disk_only(self, key: Key) -> bool:
        return not self._tier.knows(key) and self._disk.find(key) is not None

    def _move(self, source: str, target: str, pairs: list[tuple[int, int]], move: Move) -> None:
        id = next(self._ids)
        rids = () if move.rid is None else (move.rid,)
        self._submitted.append(Transfer(id, "move", target, pairs, rids, source=source))
        self._moves[id] = move

    def _end_move(self, move: Move, ok: bool) -> None:
        """What has come can be found. What could not be fetched is forgotten, so that it is not fetched again."""
        source, target = (self._tier, self._disk) if move.rid is None else (self._disk, self._tier)
        for key, unit in zip(move.keys, move.units, strict=True):
            source.end_load(key, unit, ok or move.rid is None)
            target.end_store(key, ok)

    def _fetches(self, rid: str) -> bool:
        """Returns whether a move for a request is in flight."""
        return any(move.rid == rid for move in self._moves.values())
