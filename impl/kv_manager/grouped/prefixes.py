"""Prefixes that are known, as a chain of blocks: for each group the block that is published there."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

from kvlockstep.reference.kv_manager.groups.contract import Group, needed


class Prefix:
    """A prefix of whole steps. `blocks` has for each group the block published here, None for none.

    A prefix lives as long as a block is published at it, a request has it, or a longer prefix does.
    """

    __slots__ = ("__weakref__", "blocks", "parent", "serial")

    def __init__(self, parent: Prefix | None, serial: int, groups: int) -> None:
        self.parent = parent
        self.serial = serial
        self.blocks: list[int | None] = [None] * groups


class PrefixIndex:
    """Finds prefixes in steps of `step` tokens, the largest that divides the block size of every group.

    The key of a prefix is the number of the one before it and the tokens of its last step: no two have the same.
    """

    def __init__(self, groups: Sequence[Group], step: int) -> None:
        self.step = step
        self._groups = groups
        self._per_block = [group.block_size // step for group in groups]
        self._known: WeakValueDictionary[tuple[int, bytes], Prefix] = WeakValueDictionary()
        self._roots: dict[int | None, int] = {}
        self._serial = 0

    def lookup(self, tokens: bytes, width: int, extra_key: int | None) -> tuple[list[Prefix], int]:
        """Walks down the known prefixes, `width` bytes a step; returns them and the length that every group serves.

        One pass: of each group it keeps how many blocks up to here are published without a gap.
        """
        chain: list[Prefix] = []
        runs = [0] * len(self._groups)
        served = 0
        before = self._root(extra_key)
        # The last token is computed in any case.
        for end in range(width, len(tokens), width):
            prefix = self._known.get((before, tokens[end - width : end]))
            if prefix is None:
                break
            chain.append(prefix)
            before = prefix.serial
            if self._all_serve(prefix, len(chain), runs):
                served = len(chain)
        del chain[served:]
        return chain, served * self.step

    def longer(self, prefix: Prefix | None, extra_key: int | None, tokens: bytes) -> Prefix:
        """Returns the prefix with one step more, a new one if it is not known yet."""
        before = self._root(extra_key) if prefix is None else prefix.serial
        found = self._known.get((before, tokens))
        if found is None:
            self._serial += 1
            found = self._known[before, tokens] = Prefix(prefix, self._serial, len(self._groups))
        return found

    def places_ending(self, steps: int) -> list[tuple[int, int]]:
        """Returns (group, place in its table) of each block that ends behind so many steps."""
        return [(g, steps // per - 1) for g, per in enumerate(self._per_block) if steps % per == 0]

    def block_at(self, chain: Sequence[Prefix], g: int, place: int) -> int | None:
        """Returns the block of a group that is published at this place of the chain."""
        return chain[(place + 1) * self._per_block[g] - 1].blocks[g]

    def _all_serve(self, prefix: Prefix, steps: int, runs: list[int]) -> bool:
        serve, cached = True, steps * self.step
        for g, group in enumerate(self._groups):
            whole, part = divmod(steps, self._per_block[g])
            if not part:
                runs[g] = runs[g] + 1 if prefix.blocks[g] is not None else 0
            if group.kind == "state":
                serve = serve and not part and runs[g] > 0
            elif reads := needed(group, cached, cached):
                serve = serve and not part and runs[g] >= whole - reads.start // group.block_size
        return serve

    def _root(self, extra_key: int | None) -> int:
        # Below all serial numbers of prefixes, which begin at 1.
        return self._roots.setdefault(extra_key, -len(self._roots))
