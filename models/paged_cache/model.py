"""Model of paged_cache: sequences that share prefixes, fork, grow, shrink and evict one another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvlockstep.models.core.bounded import bounded, bounded_dict
from kvlockstep.models.core.model import Factory, Scope
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.paged_cache.commands import SHAPES, PagedCacheScope, PagedCommands
from kvlockstep.models.paged_cache.goals import GOALS, notice
from kvlockstep.models.paged_cache.held import allocated, begun, cut, ended, evicted, grown, registered
from kvlockstep.models.paged_cache.memory import PagedMemory
from kvlockstep.models.paged_cache.picture import picture
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.paged_cache.laws import LAWS
from kvlockstep.properties.paged_cache.state import Held, View, asked_keys, keys_from, rank
from kvlockstep.reference.errors import ContractError
from kvlockstep.reference.kv_store import KVStore
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation, Growth


class PagedCacheModel(PagedCommands):
    contract = "paged_cache"
    laws = LAWS
    reference_type = PagedCache
    goals = GOALS

    def __init__(self, scope: PagedCacheScope, factory: Factory) -> None:
        self.shape = SHAPES[scope.shape]
        self._memories: dict[int, PagedMemory] = {}
        super().__init__(scope, factory)

    def factory_arguments(self, scope: PagedCacheScope) -> dict[str, Any]:
        return {"blocks": scope.blocks, "block_size": scope.block_size, "policy": scope.policy, "shape": self.shape}

    def step(self, op: Op) -> Any:
        self._require_legal(op)
        return super().step(op)

    def perform(self, system: Any, op: Op) -> Any:
        args, memory = op.args, self._memory_of(system)
        sequence: int = args.get("sequence", 0)
        answer: Any = None
        match op.name:
            case "allocate":
                tokens = args["tokens"]
                cached, blocks = system.allocate(sequence, len(tokens), asked_keys(op, self.scope.block_size))
                answer = Allocation(cached, list(bounded(blocks)))
                memory.write(list(bounded(system.table(sequence))), tuple(tokens), cached)
            case "append":
                tokens = (*self.held.tokens.get(sequence, ()), *args["tokens"])
                blocks, copies = system.append(sequence, len(args["tokens"]))
                answer = Growth(list(bounded(blocks)), [(source, target) for source, target in bounded(copies)])
                memory.copy(answer.copies)
                memory.write(list(bounded(system.table(sequence))), tokens, len(tokens) - len(args["tokens"]))
            case "truncate":
                system.truncate(sequence, args["tokens"])
            case "fork":
                answer = list(bounded(system.fork(sequence, args["child"], args["tokens"])))
            case "register":
                answer = system.register(
                    sequence, keys_from(self.held, sequence, args["first"], args["blocks"]), args["first"]
                )
            case "finish":
                full = len(self.held.tokens.get(sequence, ())) // self.scope.block_size
                system.register(sequence, keys_from(self.held, sequence, 0, full))
                system.free(sequence)
            case "register_as":
                answer = system.register(sequence, args["keys"], args["first"])
            case "lookup":
                answer = list(bounded(system.lookup(asked_keys(op, self.scope.block_size))))
            case "evict":
                answer = list(bounded(system.evict(args["blocks"])))
            case "ref_count":
                answer = system.ref_count(args["block"])
            case _:
                getattr(system, op.name)(**args)
        memory.poison_freed(system.free_blocks())
        return answer

    def observe(self, system: Any) -> View:
        memory = self._memory_of(system)
        try:
            tables = {s: list(bounded(system.table(s))) for s in bounded(system.sequences())}
            lengths = {s: system.length(s) for s in tables}
            refs = [system.ref_count(block) for block in range(self.scope.blocks)]
        except ContractError as error:
            raise RuntimeError(f"a live sequence or a block of the pool is not known: {error}") from error
        registered = bounded_dict(system.registered())
        whole = [([block], self.scope.block_size) for block in registered.values()]
        read = memory.read([*((tables[s], lengths[s]) for s in tables), *whole])
        return View(
            tables,
            lengths,
            registered,
            list(bounded(system.free_blocks())),
            list(bounded(system.idle_blocks())),
            refs,
            system.statistics(),
            dict(zip(tables, read, strict=False)),
            dict(zip(registered, read[len(tables) :], strict=True)),
        )

    def draw(self, view: View) -> Picture:
        return picture(view, self.held)

    def nothing_held(self) -> Held:
        scope = self.scope
        return Held(scope.block_size, scope.blocks, scope.block_size * self.shape.token_bytes, scope.policy)

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        args = op.args
        held = held._replace(clock=held.clock + 1)
        match op.name:
            case "allocate":
                return allocated(held, args["sequence"], tuple(args["tokens"]), args["keys"], outcome)
            case "append":
                return grown(held, args["sequence"], tuple(args["tokens"]), outcome)
            case "fork":
                tokens = held.tokens.get(args["sequence"], ())[: args["tokens"]]
                return begun(held, args["child"], tokens, outcome, len(outcome))
            case "truncate":
                return cut(held, args["sequence"], args["tokens"])
            case "free":
                return ended(held, args["sequence"])
            case "finish":
                return ended(registered(held, args["sequence"], 0, self.scope.max_tokens), args["sequence"])
            case "register":
                return registered(held, args["sequence"], args["first"], args["blocks"])
            case "evict":
                return evicted(held, outcome)
            case "reset":
                return self.nothing_held()
        return held

    def notice(self, step: Step[View, Held]) -> None:
        notice(self.goals_met, step)

    def fingerprint(self) -> Any:
        # Names decide nothing, nor do counters, and of the clocks only their order.
        return _canonical_state(self.view, self.held, self.scope)

    @classmethod
    def simpler_scopes(cls, scope: PagedCacheScope) -> Iterable[Scope]:
        for name, least in (("blocks", 0), ("block_size", 1), ("shape", 0)):
            size = getattr(scope, name)
            for smaller in sorted({least, size // 2, size - 1}):
                if least <= smaller < size:
                    yield replace(scope, **{name: smaller})

    def _require_legal(self, op: Op) -> None:
        """A key may be registered for another prefix than its own only where that is refused."""
        if op.name == "register_as" and op.args["sequence"] in self.held.tokens:
            keys, first = op.args["keys"], op.args["first"]
            if len(set(keys)) == len(keys) and not set(range(first, first + len(keys))) & set(
                self._registered_at(op.args["sequence"])
            ):
                raise NotEnabled

    def _memory_of(self, system: Any) -> PagedMemory:
        memory = self._memories.get(id(system))
        if memory is None:
            store = getattr(system, "store", None)
            if store is None:
                store = KVStore(self.scope.blocks, self.scope.block_size, 0, self.shape, "layer_major")
            memory = self._memories[id(system)] = PagedMemory(
                store, self.shape, self.scope.blocks, self.scope.block_size
            )
        return memory


def _canonical_state(view: View, held: Held, scope: PagedCacheScope) -> Any:
    """The least of all renamings of a state: the sequences in every order, the tokens permuted in every way."""
    blocks = {b for table in view.tables.values() for b in table} | set(view.idle)
    by_age = held._replace(policy="fifo")
    order = sorted(blocks, key=lambda block: rank(by_age, block)) if scope.aged or scope.policy == "fifo" else view.idle
    uses = [(block, held.lives[block].uses) for block in blocks] if scope.policy == "frequency" else []
    prefixes = [(held.prefixes[key], block) for key, block in view.registered.items()]
    states = []
    for sequences in itertools.permutations(held.tokens):
        name: dict[int, int] = {}
        for block in itertools.chain(*(view.tables[s] for s in sequences), view.idle):
            name.setdefault(block, len(name))
        tables = [tuple([name[block] for block in view.tables[s]]) for s in sequences]
        rest = tuple([name[block] for block in order]), tuple(sorted((name[block], n) for block, n in uses))
        for permuted in itertools.permutations(scope.tokens):
            token = dict(zip(scope.tokens, permuted, strict=True))
            tokens = [tuple([token[t] for t in held.tokens[s]]) for s in sequences]
            keys = sorted((name[block], tuple([token[t] for t in prefix])) for prefix, block in prefixes)
            states.append((tuple(tokens), tuple(tables), tuple(keys), rest))
    return min(states)
