"""What can happen to a block_pool: requests that share prefixes, hold blocks, cache them and let them go."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.model import Factory, Goal, LockstepModel, Scope
from kvlockstep.models.op import NotEnabled, Op, Pick, command, pick_first
from kvlockstep.properties import block_pool as laws
from kvlockstep.properties.block_pool import Held, View, prefix_in, prefix_of
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool_contract import ExtraKey, HashFunction, Prefix

MOST_IN_ONE_CALL = 4
REQUESTS = 2


def one_bit(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    """A hash that meets itself all the time."""
    return (parent + sum(tokens) + (extra_key is not None)) & 1


def python_hash(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    """Python's own, for which -1 and -2 are one number."""
    return hash((parent, tokens, extra_key))


HASHES: dict[str, HashFunction | None] = {"own": None, "one_bit": one_bit, "python": python_hash}


@dataclass(frozen=True)
class BlockPoolScope(Scope):
    """Requests of at most `longest` blocks and a rest, over the vocabulary `tokens`; a block has at most `refs` holders.

    `extra_keys` are the sequences of extra keys that requests have; `hash` is one of HASHES. With `exhaustive` every
    request is proposed instead of mostly related ones, and blocks are touched and cached one or two at a time.
    """

    blocks: int
    block_size: int
    tokens: tuple[int, ...] = (1, 2)
    longest: int = 4
    extra_keys: tuple[tuple[ExtraKey, ...], ...] = ((),)
    hash: str = "own"
    refs: int = 4
    exhaustive: bool = False

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> BlockPoolScope:
        return super().from_json(values | {"extra_keys": tuple(tuple(keys) for keys in values["extra_keys"])})


def _scopes() -> Iterable[BlockPoolScope]:
    sizes = [(4, 2), (6, 1), (3, 1), (8, 4), (5, 2), (2, 1), (12, 2), (1, 1), (0, 1), (7, 16), (24, 1)]
    vocabularies = ((1, 2), (-1, -2), (0, 257, 2**31 - 1, -(2**31)), (1,))
    identities: tuple[tuple[tuple[ExtraKey, ...], ...], ...] = (
        ((),),
        ((), (-1,), (-2,)),
        ((), ("adapter",), (None, "image"), (("adapter", 7), "image")),
    )
    for i, (blocks, block_size) in enumerate(sizes):
        for j, name in enumerate(HASHES):
            yield BlockPoolScope(
                blocks, block_size, vocabularies[(i + j) % 4], 3 + i % 3, identities[(i // 2 + j) % 3], name
            )


class BlockPoolModel(LockstepModel[BlockPoolScope]):
    contract = "block_pool"
    laws = laws.LAWS
    reference_type = BlockPool
    scope_type = BlockPoolScope
    scopes = tuple(_scopes())
    small_scopes = (
        BlockPoolScope(0, 1, longest=1, exhaustive=True),
        BlockPoolScope(3, 1, (-1, -2), 2, hash="one_bit", refs=2, exhaustive=True),
        BlockPoolScope(2, 2, (1,), 2, ((), ("a",), (None, "a")), refs=2, exhaustive=True),
    )
    goals = (
        Goal("hit", "a lookup finds every full block of the request"),
        Goal("partial_hit", "a lookup finds some blocks of the request"),
        Goal("miss", "a lookup finds nothing, though something is cached"),
        Goal("limited", "a lookup stops at its limit with the next block cached"),
        Goal("rest", "a request ends one token behind a block"),
        Goal("short", "a request ends one token before a block"),
        Goal("whole", "a request ends with a block"),
        Goal("nothing_asked", "a request without tokens is looked up, or no block is taken, touched, freed or cached"),
        Goal("exhausted", "more blocks are asked for than are free"),
        Goal("all_taken", "the last free block is handed out"),
        Goal("eviction", "a block that caches something is handed out"),
        Goal("parent_evicted", "a block is handed out while one that builds on it stays cached"),
        Goal("hole", "a lookup ends at a hole, behind which the next block is cached"),
        Goal("parent_returns", "a prefix is cached anew under one that stayed"),
        Goal("from_the_middle", "a hit takes a block out of the middle of the queue"),
        Goal("shared", "a block has two holders"),
        Goal("kept", "a block is freed by one of its holders"),
        Goal("order", "several cached blocks are freed at once"),
        Goal("mixed", "blocks that are cached and blocks that are not are freed at once"),
        Goal("twins", "two blocks cache one prefix"),
        Goal("first_twin_goes", "of two twins the one cached first is handed out"),
        Goal("second_twin_goes", "of two twins the one cached later is handed out"),
        Goal("second_twin_touched", "of two free twins the one cached later is touched"),
        Goal("collision", "a request is looked up whose hash another cached prefix has"),
        Goal("other_parent", "a request is looked up while its last block is cached behind another parent"),
        Goal("other_extra_key", "a request is looked up while its tokens are cached under another extra key"),
        Goal("grown", "a request that grew since its last operation is looked up or cached"),
        Goal("reset", "a pool with something cached is reset"),
        Goal("in_use", "a reset is asked for while a block is held"),
        Goal("repeated", "one block is freed or touched twice in one call"),
        Goal("double_free", "a free block is freed"),
        Goal("foreign", "a block that is not of the pool is named"),
        Goal("stale_hit", "a free block that caches nothing is touched"),
        Goal("already_cached", "a cached block is cached again"),
        Goal("cache_free", "a free block is cached"),
        Goal("cache_behind_hole", "a block is cached behind one that does not cache the request up to it"),
        Goal("bad_argument", "an argument is negative, too long or not 32 bits wide"),
    )

    def __init__(self, scope: BlockPoolScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        # The keys of a request are made by the pool and live longer than one operation: by system and request.
        self._keys: dict[tuple[bool, int], tuple[list[int], list[ExtraKey], Any]] = {}
        self._grown = False

    def factory_arguments(self, scope: BlockPoolScope) -> dict[str, Any]:
        return {"blocks": scope.blocks, "block_size": scope.block_size, "hash_function": HASHES[scope.hash]}

    @command(3)
    def allocate(self, pick: Pick) -> Op:
        """A request takes new blocks, perhaps one more than there are."""
        return Op("allocate", n=pick(range(min(self.view.num_free, MOST_IN_ONE_CALL) + 2)))

    @command(3)
    def touch(self, pick: Pick) -> Op:
        """A request takes the blocks of a hit, or any that are held or cached."""
        limit = self.scope.refs
        usable = [b for b, refs in enumerate(self.view.refs) if refs < limit and (refs or b in self.held.cached)]
        if self.scope.exhaustive:
            return Op("touch", blocks=[pick(usable)])
        if self.view.entries and pick((True, True, False)):
            hit = self._chain(pick(list(self.view.entries)), pick)
            if all(block in usable for block in hit):
                return Op("touch", blocks=hit)
        return Op("touch", blocks=_some(usable, pick, least=0))

    @command(4)
    def free(self, pick: Pick) -> Op:
        """A request gives blocks back, in the order of its table or in any other."""
        return Op("free", blocks=_some(list(self.held.holders), pick, least=0))

    @command(4)
    def cache_full_blocks(self, pick: Pick) -> Op:
        """A request has computed blocks that follow a cached prefix, or are its first."""
        scope = self.scope
        plain = [block for block in self.held.holders if block not in self.held.cached]
        parent = pick(self._parents())
        cached = len(parent.extra_keys)
        new = _some(plain, pick, least=1, most=scope.longest - cached)
        full = cached + len(new)
        tokens = [*parent.tokens, *(pick(scope.tokens) for _ in range(len(new) * scope.block_size))]
        extra_keys = self._extra_keys_behind(parent, pick)
        table = self._chain(parent, pick) + new
        if not scope.exhaustive and pick((False, False, True)):
            cached, tokens = pick((cached, full)), [*tokens, pick(scope.tokens)]
            table += [block for block in plain if block not in new][:1]
        return self._about("cache_full_blocks", pick, tokens, extra_keys, table=table, cached=cached, full=full)

    @command(5)
    def find_longest_prefix(self, pick: Pick) -> Op:
        """A request looks up what of it is cached."""
        tokens, extra_keys = self._request(pick)
        limit = pick((None, max(0, len(tokens) - 1) // self.scope.block_size))
        return self._about("find_longest_prefix", pick, tokens, extra_keys, limit=limit)

    @command(1)
    def reset(self, pick: Pick) -> Op:
        """Everything cached is to be forgotten."""
        return Op("reset")

    @command(1)
    def malformed(self, pick: Pick) -> Op:
        """A block is foreign, named twice or in the wrong state."""
        held, scope = list(self.held.holders)[:2], self.scope
        blank = [block for block in self.view.queue if block not in self.held.cached][:1]
        idle = [block for block in self.view.queue if block in self.held.cached][:1]
        foreign = [-1, scope.blocks, -scope.blocks - 1]
        match pick(("free", "touch", "allocate", "tokens", "limit")):
            case "free":
                bad = pick([*foreign, *held[-1:], *blank, *idle])
                return Op("free", blocks=pick(([bad, *held], [*held, bad]) if held else ([bad],)))
            case "touch":
                bad = pick([*foreign, *held[-1:], *blank])
                return Op("touch", blocks=pick(([bad, *held, *idle], [*held, *idle, bad]) if held or idle else ([bad],)))
            case "allocate":
                return Op("allocate", n=-1)
            case "tokens":
                return self._about("find_longest_prefix", pick, [pick((2**31, -(2**31) - 1))], [], limit=None)
        return self._about("find_longest_prefix", pick, [], [], limit=-1)

    @command(2)
    def malformed_caching(self, pick: Pick) -> Op:
        """Blocks are cached that are foreign, free, cached, named twice or behind a hole, or more than there are."""
        scope = self.scope
        holders, given = self.held.holders, self.held.cached
        plain = [block for block in holders if block not in given][:1]
        parent = self._parents()[-1] if scope.exhaustive else pick(self._parents())
        cached = len(parent.extra_keys)
        full = cached + 1
        tokens = [*parent.tokens, *[scope.tokens[0]] * scope.block_size]
        table = self._chain(parent, pick)
        match pick(("block", "parent", "twice", "bounds")):
            case "block":
                held = [block for block in holders if block in given][:1]
                table.append(pick([*held, *self.view.queue[:1], -1, scope.blocks]))
            case "parent":
                if not cached or not plain:
                    raise NotEnabled
                table = [*table[:-1], pick([-1, scope.blocks, *given, *plain]), *plain]
            case "twice":
                table, tokens, full = table + plain * 2, tokens + tokens[-scope.block_size :], full + len(plain)
            case _:
                table += plain * pick((0, 2))
                cached, full = pick(((-1, 0), (1, 0), (0, full + 1), (full + 1, full + 1), (cached, full)))
        extra_keys = self._extra_keys_behind(parent, pick_first if scope.exhaustive else pick)
        return self._about("cache_full_blocks", pick, tokens, extra_keys, table=table, cached=cached, full=full)

    def _about(self, name: str, pick: Pick, tokens: list[int], extra_keys: list[ExtraKey], **more: Any) -> Op:
        request = 0 if self.scope.exhaustive else pick(range(REQUESTS))
        return Op(name, request=request, tokens=tokens, extra_keys=extra_keys, **more)

    def _request(self, pick: Pick) -> tuple[list[int], list[ExtraKey]]:
        """The tokens and extra keys of a request: any, or one that starts like something cached."""
        scope = self.scope
        if scope.exhaustive:
            tokens, extra_keys = pick(_all_requests(scope.tokens, scope.longest * scope.block_size, scope.extra_keys))
            return list(tokens), list(extra_keys)
        base, extra_keys = [], list(pick(scope.extra_keys))
        entries = list(self.view.entries)
        if entries and pick((True, True, True, False)):
            prefix = pick(entries)
            base = list(prefix.tokens)
            if pick((True, True, True, False)):
                extra_keys = self._extra_keys_behind(prefix, pick)
        longest = (scope.longest + 1) * scope.block_size - 1
        whole = pick(range(scope.longest + 1)) * scope.block_size
        length = max(0, min(longest, whole + pick((0, 0, 0, 1, -1))))
        return base[:length] + [pick(scope.tokens) for _ in range(length - len(base))], extra_keys

    def _parents(self) -> list[Prefix]:
        """What a block can be cached behind: the empty prefix, or a cached one that is not too long."""
        longest = self.scope.longest
        return [Prefix((), ()), *[prefix for prefix in self.view.entries if len(prefix.extra_keys) < longest]]

    def _extra_keys_behind(self, prefix: Prefix, pick: Pick) -> list[ExtraKey]:
        """The extra keys of a request that may start with this prefix."""
        blocks = len(prefix.extra_keys)
        able = [keys for keys in self.scope.extra_keys if (*keys, *(None,) * blocks)[:blocks] == prefix.extra_keys]
        return list(pick(able))

    def _prefix(self, tokens: list[int], extra_keys: list[ExtraKey], blocks: int) -> Prefix:
        return prefix_of(tokens, extra_keys, blocks, self.scope.block_size)

    def _chain(self, prefix: Prefix, pick: Pick) -> list[int]:
        """The blocks of a cached prefix, any of the twins. Only the last has to be there."""
        size, chain = self.scope.block_size, []
        count = len(prefix.extra_keys)
        for blocks in range(1, count + 1):
            twins = self.view.entries.get(Prefix(prefix.extra_keys[:blocks], prefix.tokens[: blocks * size]), [])
            if not twins and blocks == count:
                raise NotEnabled
            chain.append(pick(twins) if twins else 0)
        return chain

    def perform(self, system: Any, op: Op) -> Any:
        args = op.args
        match op.name:
            case "allocate":
                return list(system.allocate(args["n"]))
            case "touch" | "free":
                getattr(system, op.name)(list(args["blocks"]))
            case "cache_full_blocks":
                given = list(args["table"])
                system.cache_full_blocks(self._request_keys(system, args), given, args["cached"], args["full"])
                given.clear()
            case "find_longest_prefix":
                return list(system.find_longest_prefix(self._request_keys(system, args), args["limit"]))
            case "reset":
                system.reset()
        return None

    def _request_keys(self, system: Any, args: dict[str, Any]) -> Any:
        """The keys of the named request: grown if it can grow into these tokens, else new, in two pieces.

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
            pieces = [tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]]
        for piece in pieces:
            given = list(piece)
            keys.extend(given)
            given.clear()
        self._keys[name] = tokens, extra_keys, keys
        return keys

    def observe(self, system: Any) -> View:
        return View(
            list(system.free_queue()),
            list(system.ref_counts()),
            system.entries(),
            system.num_free,
            system.num_evictable,
            system.usage,
        )

    def nothing_held(self) -> Held:
        return Held(self.scope.blocks, self.scope.block_size, {}, {})

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        args = op.args
        match op.name:
            case "allocate":
                holders = {**held.holders, **{block: held.holders.get(block, 0) + 1 for block in outcome}}
                cached = {block: prefix for block, prefix in held.cached.items() if block not in outcome}
                return held._replace(holders=holders, cached=cached)
            case "touch":
                return held._replace(holders=dict(Counter(held.holders) + Counter(args["blocks"])))
            case "free":
                return held._replace(holders=dict(Counter(held.holders) - Counter(args["blocks"])))
            case "cache_full_blocks":
                blocks = enumerate(args["table"][args["cached"] : args["full"]], args["cached"] + 1)
                new = {block: self._prefix(args["tokens"], args["extra_keys"], i) for i, block in blocks}
                return held._replace(cached={**held.cached, **new})
            case "reset":
                return held._replace(cached={})
        return held

    def notice(self, step: Step) -> None:
        reach, name = self.reach, step.op.name
        if isinstance(step.outcome, Refused):
            self._notice_refusal(step)
            return
        match name:
            case "allocate":
                self._notice_allocation(step)
            case "touch":
                blocks = step.op.args["blocks"]
                reach["nothing_asked"] += not blocks
                reach["from_the_middle"] += any(block in step.before.queue[1:-1] for block in blocks)
                reach["shared"] += any(step.held.holders[block] > 1 for block in blocks)
                reach["second_twin_touched"] += any(self._is_second_free_twin(step, block) for block in blocks)
            case "free":
                blocks = step.op.args["blocks"]
                idle = [block in step.held.cached for block in blocks if block not in step.held.holders]
                reach["nothing_asked"] += not blocks
                reach["kept"] += len(idle) < len(blocks)
                reach["order"] += sum(idle) > 1
                reach["mixed"] += any(idle) and not all(idle)
            case "cache_full_blocks":
                self._notice_caching(step)
            case "find_longest_prefix":
                self._notice_lookup(step)
            case "reset":
                reach["reset"] += bool(step.before.entries)

    def _notice_allocation(self, step: Step) -> None:
        reach, before, after = self.reach, step.before.entries, step.after.entries
        reach["nothing_asked"] += not step.outcome
        reach["all_taken"] += bool(step.outcome) and not step.after.queue
        for block in step.outcome:
            prefix = step.held_before.cached.get(block)
            if prefix is None:
                continue
            reach["eviction"] += 1
            reach["second_twin_goes"] += before[prefix][0] not in step.outcome
            reach["first_twin_goes"] += prefix in after and before[prefix][0] == block
            reach["parent_evicted"] += prefix not in after and any(_extends(longer, prefix) for longer in after)

    def _is_second_free_twin(self, step: Step, block: int) -> bool:
        twins = step.before.entries.get(step.held.cached.get(block), [block])
        return twins[0] != block and twins[0] in step.before.queue and block in step.before.queue

    def _notice_caching(self, step: Step) -> None:
        reach, args = self.reach, step.op.args
        reach["nothing_asked"] += args["cached"] == args["full"]
        reach["grown"] += self._grown
        for i in range(args["cached"], args["full"]):
            prefix = prefix_in(step, i + 1)
            reach["twins"] += prefix in step.before.entries
            new = prefix not in step.before.entries
            reach["parent_returns"] += new and any(_extends(other, prefix) for other in step.before.entries)

    def _notice_lookup(self, step: Step) -> None:
        reach, args, entries = self.reach, step.op.args, step.after.entries
        size, found = self.scope.block_size, len(step.outcome)
        length = len(args["tokens"])
        blocks = length // size
        reach["nothing_asked"] += not length
        reach["whole"] += blocks > 0 and length % size == 0
        reach["rest"] += blocks > 0 and length % size == 1 % size
        reach["short"] += length % size == size - 1
        reach["grown"] += self._grown
        if not blocks or not entries:
            return
        reach["hit" if found == blocks else "partial_hit" if found else "miss"] += args["limit"] is None
        reach["limited"] += found == args["limit"] and found < blocks and prefix_in(step, found + 1) in entries
        reach["hole"] += found + 1 < blocks and any(prefix_in(step, i) in entries for i in range(found + 2, blocks + 1))
        prefixes = [prefix_in(step, i + 1) for i in range(blocks)]
        for prefix in prefixes[found:][:1]:
            last = prefix.tokens[-size:]
            others = [other for other in entries if len(other.tokens) == len(prefix.tokens) and other != prefix]
            reach["other_extra_key"] += any(other.tokens == prefix.tokens for other in others)
            reach["other_parent"] += any(other.tokens[-size:] == last and found for other in others)
        reach["collision"] += self._collides(prefixes[: found + 1])

    def _collides(self, prefixes: Sequence[Prefix]) -> bool:
        function = HASHES[self.scope.hash]
        if function is None:
            return False
        size = self.scope.block_size
        known = {_hash_of(function, prefix, size): prefix for prefix in self.view.entries}
        return any(known.get(_hash_of(function, prefix, size), prefix) != prefix for prefix in prefixes)

    def _notice_refusal(self, step: Step) -> None:
        reach, args = self.reach, step.op.args
        error = step.outcome.error
        match step.op.name, error:
            case "allocate", "OutOfSlots":
                reach["exhausted"] += 1
            case "reset", _:
                reach["in_use"] += 1
            case _, "UnknownSlot":
                reach["foreign"] += 1
            case "touch" | "free", "InvalidArgument":
                reach["repeated"] += 1
            case "touch", _:
                reach["stale_hit"] += 1
            case "free", _:
                reach["double_free"] += 1
            case "cache_full_blocks", "AlreadyCached":
                reach["already_cached"] += 1
            case "cache_full_blocks", "NotHeld":
                reach["cache_free"] += 1
            case "cache_full_blocks", "NotCached":
                reach["cache_behind_hole"] += 1
            case _:
                reach["bad_argument"] += bool(args)

    def fingerprint(self) -> Any:
        # Which number a block has matters to nobody but reset, which brings all of them back; so a block is what it
        # caches, where among its twins and in the queue it stands, and who holds it. Renaming tokens changes nothing.
        # Which prefixes were there before is not part of the state.
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


def _some(options: Sequence[int], pick: Pick, least: int, most: int = MOST_IN_ONE_CALL) -> list[int]:
    """Some of the blocks, in any order."""
    rest = list(options)
    most = min(len(rest), most)
    if most < least:
        raise NotEnabled
    chosen: list[int] = []
    for _ in range(pick(range(least, most + 1))):
        chosen.append(pick(rest))
        rest.remove(chosen[-1])
    return chosen


def _extends(longer: Prefix, prefix: Prefix) -> bool:
    blocks = len(prefix.extra_keys)
    return (
        len(longer.extra_keys) > blocks
        and longer.tokens[: len(prefix.tokens)] == prefix.tokens
        and longer.extra_keys[:blocks] == prefix.extra_keys
    )


@functools.lru_cache(maxsize=100_000)
def _hash_of(function: HashFunction, prefix: Prefix, size: int) -> int:
    key = 0
    for i, extra_key in enumerate(prefix.extra_keys):
        key = function(key, prefix.tokens[i * size : (i + 1) * size], extra_key)
    return key


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
        renamed.append(
            (
                [(_renamed(prefix, token), twin) for prefix, twin in queue],
                sorted((_renamed(prefix, token), twin, refs, n) for (prefix, twin, refs), n in rest),
            )
        )
    return repr(min(renamed))


def _renamed(prefix: Prefix | None, token: dict[int, int]) -> Any:
    if prefix is None:
        return (), ()
    return tuple(str(key) for key in prefix.extra_keys), tuple(token[t] for t in prefix.tokens)


