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
    """Finds prefixes in steps of `step` tokens, the largest that divides the block size of every group: a block of a
    group is `per_block` steps.

    The key of a prefix is the number of the one before it and the tokens of its last step: no two have the same.
    """

    def __init__(self, groups: Sequence[Group], step: int) -> None:
        self.step = step
        self._groups = groups
        self.per_block = [group.block_size // step for group in groups]
        self._full = [(g, self.per_block[g]) for g, group in enumerate(groups) if group.kind == "full"]
        # A state is the rarest, and the cheapest to ask for.
        self._asked = sorted(range(len(groups)), key=lambda g: groups[g].kind != "state")
        self._known: WeakValueDictionary[tuple[int, bytes], Prefix] = WeakValueDictionary()
        self._roots: dict[int | None, int] = {}
        self._serial = 0

    def lookup(self, tokens: bytes, width: int, extra_key: int | None) -> tuple[list[Prefix], int]:
        """Walks down the known prefixes, `width` bytes a step; returns them and the length that every group serves.

        The walk ends where a full group has no block. From there back the other groups are asked, which look at what
        they read only.
        """
        chain: list[Prefix] = []
        known, full = self._known, self._full
        before = self._root(extra_key)
        # The last token is computed in any case.
        for end in range(width, len(tokens), width):
            prefix = known.get((before, tokens[end - width : end]))
            if prefix is None:
                break
            chain.append(prefix)
            before = prefix.serial
            if any(prefix.blocks[g] is None and len(chain) % per == 0 for g, per in full):
                break
        while chain and not all(self._serves(g, chain) for g in self._asked):
            chain.pop()
        return chain, len(chain) * self.step

    def longer(self, prefix: Prefix | None, extra_key: int | None, tokens: bytes) -> Prefix:
        """Returns the prefix with one step more, a new one if it is not known yet."""
        before = self._root(extra_key) if prefix is None else prefix.serial
        found = self._known.get((before, tokens))
        if found is None:
            self._serial += 1
            found = self._known[before, tokens] = Prefix(prefix, self._serial, len(self._groups))
        return found

    def block_at(self, chain: Sequence[Prefix], g: int, place: int) -> int | None:
        """Returns the block of a group that is published at this place of the chain."""
        return chain[(place + 1) * self.per_block[g] - 1].blocks[g]

    def _serves(self, g: int, chain: Sequence[Prefix]) -> bool:
        """True if the group has published all that it reads behind the chain; of a full group only the last block."""
        group, per, steps = self._groups[g], self.per_block[g], len(chain)
        if group.kind == "state":
            return steps % per == 0 and chain[-1].blocks[g] is not None
        cached = steps * self.step
        reads = needed(group, cached, cached)
        if not reads:
            return True
        if steps % per or chain[-1].blocks[g] is None:
            return False
        # The walk has seen every block of a full group.
        first = steps - per if group.kind == "full" else reads.start // group.block_size * per
        return all(chain[i - 1].blocks[g] is not None for i in range(first + per, steps, per))

    def _root(self, extra_key: int | None) -> int:
        # Below all serial numbers of prefixes, which begin at 1.
        return self._roots.setdefault(extra_key, -len(self._roots))
