"""Model of block_pool: its operations on reference and target, what both must show, and who holds which block."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvlockstep.models.block_pool.commands import BlockPoolCommands
from kvlockstep.models.block_pool.goals import GOALS, reached
from kvlockstep.models.block_pool.picture import picture
from kvlockstep.models.block_pool.scope import HASHES, BlockPoolScope
from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.model import Factory, Scope
from kvlockstep.models.core.op import Op
from kvlockstep.models.core.picture import Picture
from kvlockstep.properties.block_pool import LAWS, Held, View, prefix_of
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.contract import ExtraKey, Prefix


class BlockPoolModel(BlockPoolCommands):
    """Runs a pool in lockstep with the reference."""

    contract = "block_pool"
    laws = LAWS
    goals = GOALS
    reference_type = BlockPool

    def __init__(self, scope: BlockPoolScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        # The keys of a request are made by the pool and live longer than one operation: by system and request.
        self._keys: dict[tuple[bool, int], tuple[list[int], list[ExtraKey] | None, Any]] = {}
        self._grown = False

    def factory_arguments(self, scope: BlockPoolScope) -> dict[str, Any]:
        return {"blocks": scope.blocks, "block_size": scope.block_size, "hash_function": HASHES[scope.hash]}

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
