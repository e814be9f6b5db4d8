"""Model of block_pool: requests that share prefixes, hold blocks, cache them and free them."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.block_pool.goals import GOALS, extends, reached
from kvlockstep.models.block_pool.operations import OPERATIONS
from kvlockstep.models.block_pool.picture import picture
from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Factory, Scope
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command, pick_first, sample
from kvlockstep.models.core.picture import Picture
from kvlockstep.properties.block_pool import LAWS, Held, View, prefix_of
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.contract import ExtraKey, HashFunction, Prefix

MOST_IN_ONE_CALL = 4
REQUESTS = 2
EMPTY = Prefix((), ())


def one_bit(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    """A hash that meets itself all the time."""
    return (parent + sum(tokens) + (extra_key is not None)) & 1


def python_hash(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    """Python's own, for which -1 and -2 are one number."""
    return hash((parent, tokens, extra_key))


HASHES: dict[str, HashFunction | None] = {"own": None, "one_bit": one_bit, "python": python_hash}


@dataclass(frozen=True)
class BlockPoolScope(Scope):
    """Requests of at most `longest` blocks and a rest over the vocabulary `tokens`; a block has at most `refs` holders.

    `extra_keys` are the sequences of extra keys that requests have; `hash` is one of HASHES. With `exhaustive` every
    request is looked up instead of mostly related ones, and one that computes stands beside one that only looks up.
    """

    blocks: int
    block_size: int
    tokens: tuple[int, ...] = (1, 2)
    longest: int = 3
    extra_keys: tuple[tuple[ExtraKey, ...], ...] = ((),)
    hash: str = "own"
    refs: int = 3
    exhaustive: bool = False

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> BlockPoolScope:
        keys = tuple(tuple(tuple(k) if isinstance(k, list) else k for k in keys) for keys in values["extra_keys"])
        return super().from_json(values | {"extra_keys": keys})


def _scopes() -> Iterable[BlockPoolScope]:
    vocabularies = ((1, 2), (-1, -2), (2**31 - 1, 0, -(2**31)))
    identities: tuple[tuple[tuple[ExtraKey, ...], ...], ...] = (
        ((), (-1,), (-2,)),
        ((),),
        ((), ("adapter",), (None, "image"), (("adapter", 7), "image")),
    )
    for i, (blocks, block_size) in enumerate([(3, 1), (4, 1), (3, 2), (2, 1), (5, 2), (6, 4)]):
        for j, name in enumerate(HASHES):
            keys = identities[(i // 2 + j) % 3]
            yield BlockPoolScope(blocks, block_size, vocabularies[(i + j) % 3], 2 + i % 3, keys, name)
    yield BlockPoolScope(0, 1)
    yield BlockPoolScope(1, 1, hash="one_bit")
    yield BlockPoolScope(7, 16, (1,))
    yield BlockPoolScope(24, 1, longest=8, hash="one_bit")


class BlockPoolModel(LockstepModel[BlockPoolScope]):
    contract = "block_pool"
    laws = LAWS
    goals = GOALS
    reference_type = BlockPool
    scope_type = BlockPoolScope
    operations = OPERATIONS
    scopes = tuple(_scopes())
    small_scopes = (
        BlockPoolScope(0, 1, longest=1, exhaustive=True),
        BlockPoolScope(2, 2, (1,), 2, ((), ("a",), (None, "a")), refs=2, exhaustive=True),
        BlockPoolScope(3, 1, (-1, -2), 2, hash="one_bit", refs=2, exhaustive=True),
    )

    def __init__(self, scope: BlockPoolScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        # The keys of a request are made by the pool and live longer than one operation: by system and request.
        self._keys: dict[tuple[bool, int], tuple[list[int], list[ExtraKey] | None, Any]] = {}
        self._grown = False

    def factory_arguments(self, scope: BlockPoolScope) -> dict[str, Any]:
        return {"blocks": scope.blocks, "block_size": scope.block_size, "hash_function": HASHES[scope.hash]}

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

    def perform(self, system: Any, op: Op) -> Any:
        args = op.args
        match op.name:
            case "allocate":
                return list(bounded(system.allocate(args["n"])))
            case "touch" | "free":
                getattr(system, op.name)(list(args["blocks"]))
            case "cache_full_blocks":
                given = list(args["table"])
                system.cache_full_blocks(self._request_keys(system, args), given, args["cached"], args["full"])
                given.clear()
            case "find_longest_prefix":
                return list(bounded(system.find_longest_prefix(self._request_keys(system, args), args["limit"])))
            case "reset":
                system.reset()
        return None

    def _request_keys(self, system: Any, args: dict[str, Any]) -> Any:
        """The keys of the named request: grown if it can grow into these tokens, else new, of request 1 in two pieces.

        The lists given are emptied afterwards, so that a pool that keeps one instead of a copy shows.
        """
        name = system is self.reference, args["request"]
        tokens, extra_keys = args["tokens"], args["extra_keys"]
        known, of, keys = self._keys.pop(name, ([], None, None))
        self._grown = of == extra_keys and known == tokens[: len(known)]
        pieces = [tokens[len(known) :]]
        if not self._grown:
            given = list(extra_keys)
            keys = system.request_keys(given)
            given.clear()
            half = len(tokens) // 2 * args["request"]
            pieces = [tokens[:half], tokens[half:]]
        for piece in pieces:
            given = list(piece)
            keys.extend(given)
            given.clear()
        self._keys[name] = tokens, extra_keys, keys
        return keys

    def observe(self, system: Any) -> View:
        queue, refs = (
            list(bounded(system.free_queue())),
            [system.ref_count(block) for block in range(self.scope.blocks)],
        )
        return View(queue, refs, system.entries(), system.num_free, system.num_evictable, system.usage)

    def draw(self, view: View) -> Picture:
        return picture(view)

    def nothing_held(self) -> Held:
        return Held(self.scope.blocks, self.scope.block_size, {}, {})

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        args = op.args
        match op.name:
            case "allocate":
                cached = {block: prefix for block, prefix in held.cached.items() if block not in outcome}
                return held._replace(holders={**held.holders, **dict.fromkeys(outcome, 1)}, cached=cached)
            case "touch":
                return held._replace(holders=dict(Counter(held.holders) + Counter(args["blocks"])))
            case "free":
                return held._replace(holders=dict(Counter(held.holders) - Counter(args["blocks"])))
            case "cache_full_blocks":
                new = enumerate(args["table"][args["cached"] : args["full"]], args["cached"] + 1)
                about = args["tokens"], args["extra_keys"]
                prefixes = {block: prefix_of(*about, i, held.block_size) for i, block in new}
                return held._replace(cached={**held.cached, **prefixes})
            case "reset":
                return held._replace(cached={})
        return held

    def notice(self, step: Step[View, Held]) -> None:
        self.goals_met.update(reached(step, self._grown, HASHES[self.scope.hash]))

    def fingerprint(self) -> Any:
        # Which number a block has matters to nobody but reset, which brings all of them back; so a block is what it
        # caches, where among its twins and in the queue it stands, and who holds it. Renaming tokens changes nothing.
        held, entries = self.held.cached, self.view.entries
        twin = {block: i for blocks in entries.values() for i, block in enumerate(blocks)}
        queue = tuple((held.get(block), twin.get(block, 0)) for block in self.view.queue)
        rest = Counter((held.get(block), twin.get(block, 0), refs) for block, refs in self.held.holders.items())
        state = queue, frozenset(rest.items())
        return _canonical(state, self.scope.tokens) if self.scope.exhaustive else state

    @classmethod
    def simpler_scopes(cls, scope: BlockPoolScope) -> Iterable[Scope]:
        for name, least in (("blocks", 0), ("block_size", 1), ("longest", 1)):
            size = getattr(scope, name)
            for smaller in sorted({least, least + 1, size // 2, size - 1}):
                if least <= smaller < size:
                    yield replace(scope, **{name: smaller})


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


@functools.lru_cache(maxsize=100_000)
def _canonical(state: Any, tokens: tuple[int, ...]) -> Any:
    """The least renaming of a state, tokens permuted in every way."""
    queue, rest = state
    renamed = []
    for permuted in itertools.permutations(tokens):
        token = dict(zip(tokens, permuted, strict=True))
        waiting = [(_renamed(prefix, token), twin) for prefix, twin in queue]
        held = sorted((_renamed(prefix, token), twin, refs, n) for (prefix, twin, refs), n in rest)
        renamed.append((waiting, held))
    return repr(min(renamed))


def _renamed(prefix: Prefix | None, token: dict[int, int]) -> Any:
    if prefix is None:
        return (), ()
    return tuple(str(key) for key in prefix.extra_keys), tuple(token[t] for t in prefix.tokens)
