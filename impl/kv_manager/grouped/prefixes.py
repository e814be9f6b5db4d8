"""Prefixes that are known, as a chain of blocks: for each group the block that is published there."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.reference.kv_manager.groups.contract import Group, needed


class Prefix:
    """A prefix of whole steps: `parent` and the `tokens` of its last step; without a parent the prefix of no token.

    `blocks` has for each group the block published here, None for none. `users` counts the published blocks, the
    requests that are here, and the longer prefixes: without any the prefix is forgotten. `serial` is never given twice.
    """

    __slots__ = ("blocks", "extra_key", "parent", "serial", "tokens", "users")

    def __init__(
        self, parent: Prefix | None, tokens: bytes, extra_key: int | None, serial: int, blocks: list[int | None]
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.extra_key = extra_key
        self.serial = serial
        self.blocks = blocks
        self.users = 0


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
        self._known: dict[tuple[int, bytes], Prefix] = {}
        self._roots: dict[int | None, Prefix] = {}
        self._serial = 0
        self._none: list[int | None] = [None] * len(groups)

    def root(self, extra_key: int | None) -> Prefix:
        """Returns the prefix of no token under an extra key."""
        if extra_key not in self._roots:
            self._serial += 1
            self._roots[extra_key] = Prefix(None, b"", extra_key, self._serial, self._none.copy())
        return self._roots[extra_key]

    def lookup(self, tokens: bytes, width: int, extra_key: int | None) -> tuple[list[Prefix], int]:
        """Walks down the known prefixes, `width` bytes a step; returns them and the length that every group serves.

        The walk ends where a full group has no block. From there back the other groups are asked, which look at what
        they read only.
        """
        chain: list[Prefix] = []
        known, full = self._known, self._full
        root = self._roots.get(extra_key)
        before = root.serial if root is not None else -1
        # The last token is computed in any case.
        for end in range(width, len(tokens), width):
            prefix = known.get((before, tokens[end - width : end]))
            if prefix is None:
                break
            chain.append(prefix)
            before = prefix.serial
            for g, per in full:
                if prefix.blocks[g] is None and len(chain) % per == 0:
                    break
            else:
                continue
            break
        while chain and not all(self._serves(g, chain) for g in self._asked):
            chain.pop()
        return chain, len(chain) * self.step

    def longer(self, prefix: Prefix, tokens: bytes) -> Prefix:
        """Returns the prefix with one step more, a new one if it is not known yet."""
        key = prefix.serial, tokens
        found = self._known.get(key)
        if found is None:
            self._serial = serial = self._serial + 1
            found = self._known[key] = Prefix(prefix, tokens, prefix.extra_key, serial, self._none.copy())
            prefix.users += 1
        return found

    def leave(self, prefix: Prefix) -> None:
        """The prefix has one user fewer; it is forgotten with its last one, and so are those in front of it."""
        prefix.users -= 1
        self.forget(prefix)

    def forget(self, prefix: Prefix) -> None:
        """Forgets the prefix if it has no users, and those in front of it that have no others."""
        while not prefix.users:
            if prefix.parent is None:
                self._roots.pop(prefix.extra_key, None)
                break
            del self._known[prefix.parent.serial, prefix.tokens]
            prefix = prefix.parent
            prefix.users -= 1

    def blocks_at(self, chain: Sequence[Prefix], g: int, places: range) -> list[int | None]:
        """Returns the blocks of a group that are published at these places of the chain."""
        per = self.per_block[g]
        return [prefix.blocks[g] for prefix in chain[(places.start + 1) * per - 1 : places.stop * per : per]]

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
