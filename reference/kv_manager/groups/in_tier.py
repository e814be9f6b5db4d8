"""What a pool of several groups and a tier serve together: the blocks that a hit needs, wherever each of them is.

`kv` is the manager that has the pools, of a kv_manager the target itself.
"""

from __future__ import annotations

from typing import Any

from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.request import to_hit
from kvlockstep.reference.kv_manager.groups.tables import GroupTables
from kvlockstep.reference.kv_manager.tier import Tier

# The pool and the number of a block.
Block = tuple[str, int]


def block_of(kv: GroupTables, g: int, number: int) -> Block:
    """A block of a group."""
    return kv.groups[g].pool, number


def held_blocks(kv: GroupTables) -> set[Block]:
    """The blocks that live requests hold."""
    every = range(len(kv.groups))
    return {block_of(kv, g, number) for request in kv._live.values() for g in every for number in request.held(g)}


def filled(kv: GroupTables, tokens: list[int], extra_key: int | None, first: int, stop: int) -> list[tuple[Key, Block]]:
    """The published blocks that were filled when the positions [first, stop) were computed."""
    found = []
    for g, group in enumerate(kv.groups):
        for place in range(first // group.block_size, stop // group.block_size):
            number = kv._find(g, tokens, extra_key, place)
            if number is not None:
                found.append((kv._key(g, tokens, extra_key, place), block_of(kv, g, number)))
    return found


def longest_hit(kv: GroupTables, tier: Tier, tokens: list[int], extra_key: int | None) -> tuple[int, list[Key]]:
    """The longest hit that pool and tier serve, with the keys of its blocks; none if the pool alone serves as much."""
    for cached in range(len(tokens) - 1, kv._lookup(tokens, extra_key), -1):
        keys = keys_of_hit(kv, tokens, extra_key, cached)
        if keys and all(key in kv._pool(key[0]).cached or tier.find(key) is not None for key in keys):
            return cached, keys
    return 0, []


def keys_of_hit(kv: GroupTables, tokens: list[int], extra_key: int | None, cached: int) -> list[Key]:
    """The keys of the blocks that a hit of so many tokens needs; none if it would end within a block."""
    keys: list[Key] = []
    for g, group in enumerate(kv.groups):
        places = to_hit(group, cached)
        if places.stop * group.block_size > cached or (group.kind == "state" and cached % group.block_size):
            return []
        keys += [kv._key(g, tokens, extra_key, place) for place in places]
    return keys


def named(kv: GroupTables, kind: str, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, ...]]:
    """The pairs of a transfer as a target with these pools names them: with several, the pool stands in front."""
    found: list[tuple[Any, ...]] = []
    for source, target in pairs:
        pool, number = target if kind == "load" else source
        pair = (source, number) if kind == "load" else (number, target)
        found.append((pool, *pair) if kv.pools else pair)
    return found
