"""Commands of block_pool: requests take blocks, touch a hit, cache what is full, look up and free; and misuse."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.block_pool.goals import extends
from kvlockstep.models.block_pool.operations import OPERATIONS
from kvlockstep.models.block_pool.scope import SCOPES, SMALL_SCOPES, BlockPoolScope
from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command, pick_first, sample
from kvlockstep.reference.block_pool.contract import ExtraKey, Prefix

MOST_IN_ONE_CALL = 4
REQUESTS = 2
EMPTY = Prefix((), ())


class BlockPoolCommands(LockstepModel[BlockPoolScope]):
    """The commands, and how they choose blocks and requests."""

    scope_type = BlockPoolScope
    operations = OPERATIONS
    scopes = SCOPES
    small_scopes = SMALL_SCOPES

    @command(3)
    def allocate(self, pick: Pick) -> Op:
        """A request takes new blocks, perhaps one more than are free."""
        most = min(self.view.num_free, MOST_IN_ONE_CALL)
        return Op("allocate", n=pick(range(1, most + 2)))

    @command(3)
    def touch(self, pick: Pick) -> Op:
        """A request takes the blocks of a hit, or any that are cached or held."""
        limit, entries, cached = self.scope.refs, self.view.entries, self.held.cached
        usable = [b for b, refs in enumerate(self.view.refs) if refs < limit and (refs or b in cached)]
        if self.scope.exhaustive:
            return Op("touch", blocks=[pick(usable)])
        idle = [block for block in usable if not self.view.refs[block]]
        if idle and _maybe(pick):
            twins = [block for block in idle if entries[cached[block]][0] != block]
            return Op("touch", blocks=[pick(twins if twins and _maybe(pick) else idle)])
        if entries and _maybe(pick):
            hit = self._chain(pick(list(entries)), pick)
            if all(block in usable for block in hit):
                return Op("touch", blocks=hit)
        return Op("touch", blocks=_some(usable, pick))

    @command(4)
    def free(self, pick: Pick) -> Op:
        """A request gives blocks back, in any order; or all that are held lose a holder."""
        held = list(self.held.holders)
        if held and not self.scope.exhaustive and pick((False, False, True)):
            return Op("free", blocks=held)
        return Op("free", blocks=_some(held, pick))

    @command(4)
    def cache_full_blocks(self, pick: Pick) -> Op:
        """A request has computed blocks that follow a cached prefix or are its first; perhaps what another has, too."""
        scope, entries = self.scope, self.view.entries
        plain = [block for block in self.held.holders if block not in self.held.cached]
        parent = pick(self._parents())
        cached = len(parent.extra_keys)
        new = _some(plain, pick, scope.longest - cached)
        full = cached + len(new)
        twins = [] if scope.exhaustive else [prefix for prefix in entries if extends(prefix, parent)]
        tokens = list(pick(twins).tokens if twins and _maybe(pick) else parent.tokens)[: full * scope.block_size]
        tokens += [pick(scope.tokens) for _ in range(full * scope.block_size - len(tokens))]
        table = self._chain(parent, pick) + new
        if not scope.exhaustive and pick((False, False, True)):
            table += [block for block in plain if block not in new][:1]
            tokens.append(pick(scope.tokens))
        request = 0 if scope.exhaustive else pick(range(REQUESTS))
        return self._caching(request, tokens, self._extra_keys_behind(parent, pick), table, cached, full)

    @command(5)
    def find_longest_prefix(self, pick: Pick) -> Op:
        """A request looks up what of it is cached."""
        scope = self.scope
        if not self.view.entries and not scope.exhaustive:
            raise NotEnabled
        tokens, extra_keys = self._request(pick)
        request = pick(range(REQUESTS))
        limits = (None, max(0, len(tokens) - 1) // scope.block_size)
        limit = limits[request] if scope.exhaustive else pick(limits)
        return Op("find_longest_prefix", request=request, tokens=tokens, extra_keys=extra_keys, limit=limit)

    @command(1)
    def reset(self, pick: Pick) -> Op:
        """Proposes to forget everything cached."""
        if self.held.holders or not (self.held.cached or self.scope.exhaustive):
            raise NotEnabled
        return Op("reset")

    @command(2)
    def odd(self, pick: Pick) -> Op:
        """Nothing is asked for, an argument is out of range, or a block is foreign, named twice or in a wrong state."""
        if self.scope.blocks and not (self.scope.exhaustive or self.held.holders or self.held.cached):
            raise NotEnabled
        held, cached = list(self.held.holders)[:2], self.held.cached
        blank = [block for block in self.view.queue if block not in cached][:1]
        idle = [block for block in self.view.queue if block in cached][:1]
        foreign = [-1, self.scope.blocks, *[-self.scope.blocks - 1] * (not self.scope.exhaustive)]
        match pick(("cache", "free", "touch", "rest")):
            case "cache":
                return self._odd_caching(pick)
            case "free":
                bad = pick([*foreign, *held[-1:], *blank, *idle])
                return Op("free", blocks=pick(([bad, *held], [*held, bad]) if held else ([bad],)))
            case "touch":
                bad, good = pick([*foreign, *held[-1:], *blank]), [*held, *idle]
                return Op("touch", blocks=pick(([bad, *good], [*good, bad]) if good else ([bad],)))
        return pick(_odd_calls())

    def _odd_caching(self, pick: Pick) -> Op:
        """Blocks are cached that are foreign, free, cached, named twice, behind a hole, not full, or not there."""
        scope, queue, given = self.scope, self.view.queue, self.held.cached
        plain = [block for block in self.held.holders if block not in given][:1]
        held = [block for block in self.held.holders if block in given][:1]
        parents = self._parents()
        parent = parents[-1] if scope.exhaustive else pick(parents[1:] or parents)
        extra_keys = self._extra_keys_behind(parent, pick_first if scope.exhaustive else pick)
        tokens = [*parent.tokens, *[scope.tokens[0]] * scope.block_size]
        table, cached = self._chain(parent, pick), len(parent.extra_keys)
        full = cached + 1
        kinds = ["block", "bounds"]
        if plain:
            kinds += ["parent", "twice", "partial"] if cached else ["twice", "partial"]
        match pick(kinds):
            case "block":
                table.append(pick([*held, *queue[:1], -1, scope.blocks]))
            case "parent":
                table = [*table[:-1], pick([*plain, *given, -1, scope.blocks]), *plain]
            case "twice":
                table, tokens, full = table + plain * 2, tokens + tokens[-scope.block_size :], full + 1
            case "partial":
                table += plain
                tokens.pop()
            case _:
                cached, full = pick(((-1, 0), (1, 0), (full + 1, full + 1), (cached, full), (cached, cached)))
        return self._caching(0, tokens, extra_keys, table, cached, full)

    def _caching(
        self, request: int, tokens: list[int], extra_keys: list[ExtraKey], table: list[int], cached: int, full: int
    ) -> Op:
        about: dict[str, Any] = {"request": request, "tokens": tokens, "extra_keys": extra_keys}
        return Op("cache_full_blocks", **about, table=table, cached=cached, full=full)

    def _request(self, pick: Pick) -> tuple[list[int], list[ExtraKey]]:
        """The tokens and extra keys of a request: any, or one that starts like something cached."""
        scope = self.scope
        if scope.exhaustive:
            tokens, keys = pick(_all_requests(scope.tokens, scope.longest * scope.block_size, scope.extra_keys))
            return list(tokens), list(keys)
        base: list[int] = []
        extra_keys = list(pick(scope.extra_keys))
        entries = list(self.view.entries)
        if entries and _mostly(pick):
            prefix = pick(entries)
            base = list(prefix.tokens)
            if _mostly(pick):
                extra_keys = self._extra_keys_behind(prefix, pick)
        longest = (scope.longest + 1) * scope.block_size - 1
        whole = pick(range(scope.longest, -1, -1)) * scope.block_size
        length = max(0, min(longest, whole + pick((0, 0, 0, 1, -1))))
        return base[:length] + [pick(scope.tokens) for _ in range(length - len(base))], extra_keys

    def _parents(self) -> list[Prefix]:
        """Prefixes that a block can be cached behind: the empty one, and cached ones that are not too long."""
        longest = self.scope.longest
        return [EMPTY, *[prefix for prefix in self.view.entries if len(prefix.extra_keys) < longest]]

    def _extra_keys_behind(self, prefix: Prefix, pick: Pick) -> list[ExtraKey]:
        """The extra keys of a request that may start with this prefix."""
        blocks = len(prefix.extra_keys)
        able = [keys for keys in self.scope.extra_keys if (*keys, *(None,) * blocks)[:blocks] == prefix.extra_keys]
        return list(pick(able))

    def _chain(self, prefix: Prefix, pick: Pick) -> list[int]:
        """The blocks of a cached prefix, one of each twins; 0 where none is left."""
        size, chain = self.scope.block_size, []
        for blocks in range(1, len(prefix.extra_keys) + 1):
            part = Prefix(prefix.extra_keys[:blocks], prefix.tokens[: blocks * size])
            chain.append(pick(self.view.entries.get(part, (0,))))
        return chain


def _maybe(pick: Pick) -> bool:
    return pick((True, False))


def _mostly(pick: Pick) -> bool:
    return pick((True, True, True, False))


def _some(options: Sequence[int], pick: Pick, most: int = MOST_IN_ONE_CALL) -> list[int]:
    """At least one of the blocks, in any order."""
    return sample(pick, options, pick(range(min(len(options), most), 0, -1)))


@functools.cache
def _odd_calls() -> list[Op]:
    find = Op("find_longest_prefix", request=0, tokens=[], extra_keys=[], limit=None)
    wide = [find.but(tokens=[token]) for token in (2**31, -(2**31) - 1)]
    nothing = [Op("allocate", n=0), Op("touch", blocks=[]), Op("free", blocks=[])]
    return [Op("reset"), Op("allocate", n=-1), find.but(limit=-1), *wide, *nothing]


@functools.cache
def _all_requests(tokens: tuple[int, ...], longest: int, extra_keys: tuple[tuple[ExtraKey, ...], ...]) -> list[Any]:
    sequences = [p for n in range(longest + 1) for p in itertools.product(tokens, repeat=n)]
    return [(sequence, keys) for keys in extra_keys for sequence in sequences]
