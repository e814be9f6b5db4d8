"""What can happen to a paged_cache: sequences that share prefixes, fork, grow, shrink and crowd one another out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.model import Factory, Goal, LockstepModel, Scope, guarded
from kvlockstep.models.op import NotEnabled, Op, Pick, command
from kvlockstep.models.paged_held import allocated, begun, cut, ended, evicted, grown, registered
from kvlockstep.models.paged_memory import PagedMemory
from kvlockstep.properties import paged_cache as laws
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.paged_cache import Held, Tokens, View, keys_of, rank
from kvlockstep.reference.contracts import ContractError
from kvlockstep.reference.kv_store import KVStore
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_contract import POLICIES, Allocation, Growth, KVShape

SHAPES = (
    KVShape(1, 1, 1, "float32"),
    KVShape(1, 1, 2, "bfloat16"),
    KVShape(1, 2, 2, "float8_e4m3fn"),
    KVShape(1, 1, 2, "float16"),
    KVShape(1, 1, 4, "int8"),
)
REFUSED = {
    "UnknownSequence": "unknown_sequence",
    "SequenceLive": "live_sequence",
    "InvalidArgument": "bad_argument",
    "UnknownSlot": "unknown_block",
}
PROMPTS = ("repeat", "longer", "fresh", "repeat", "longer", "shorter", "branch")


@dataclass(frozen=True)
class PagedCacheScope(Scope):
    """Up to `sequences` live sequences of up to `max_tokens` tokens from the vocabulary `tokens`; SHAPES[shape].

    With `exhaustive` every sequence is proposed instead of mostly related ones, and a block is used `max_uses` times;
    with `aged` the age of blocks is part of the state under any policy, since a target may go by it where it must not.
    """

    blocks: int
    block_size: int
    policy: str
    sequences: int
    max_tokens: int
    tokens: tuple[int, ...] = (1, 2)
    shape: int = 0
    exhaustive: bool = False
    max_uses: int = 2
    aged: bool = False

    def shown(self) -> dict[str, Any]:
        return {"blocks": self.blocks, "block_size": self.block_size, "policy": self.policy}


def _scopes() -> Iterable[PagedCacheScope]:
    sizes = [(3, 2), (2, 1), (4, 2), (3, 1), (2, 2), (6, 2), (4, 4), (3, 16), (5, 1), (8, 2), (3, 4)]
    policies, shapes = itertools.cycle(POLICIES), itertools.cycle(range(len(SHAPES)))
    for i, (blocks, size) in enumerate(sizes):
        for sequences in (2, 3, 4):
            tokens = ((1, 2), (1, 2, 3), (1, 257, 2**31 - 1))[(i + sequences) % 3]
            longest = max(1, blocks - (sequences == 4)) * size + 1
            yield PagedCacheScope(blocks, size, next(policies), sequences, longest, tokens, next(shapes))
    yield PagedCacheScope(0, 2, "lru", 2, 3)


class PagedCacheModel(LockstepModel[PagedCacheScope]):
    contract = "paged_cache"
    laws = laws.LAWS
    reference_type = PagedCache
    scope_type = PagedCacheScope
    scopes = tuple(_scopes())
    small_scopes = (
        PagedCacheScope(2, 1, "lru", 2, 2, exhaustive=True, aged=True),
        PagedCacheScope(2, 1, "fifo", 2, 2, (1,), exhaustive=True),
        PagedCacheScope(2, 1, "frequency", 2, 2, (1,), exhaustive=True),
        PagedCacheScope(3, 2, "lru", 2, 4, (1,), exhaustive=True),
        PagedCacheScope(2, 2, "fifo", 2, 3, (1,), exhaustive=True),
        PagedCacheScope(2, 2, "frequency", 2, 3, (1,), exhaustive=True),
    )
    goals = (
        Goal("hit", "a sequence starts with cached tokens"),
        Goal("full_prefix_hit", "all tokens of a new sequence are cached"),
        Goal("idle_hit", "a hit is on blocks that no sequence holds"),
        Goal("hit_saved", "the hit of an allocation that evicts is what the policy would have evicted"),
        Goal("partial_hit", "some of the keys asked for are hit"),
        Goal("eviction_lru", "a block is evicted under lru"),
        Goal("eviction_fifo", "a block is evicted under fifo"),
        Goal("eviction_frequency", "a block is evicted under frequency"),
        Goal("policies_differ", "the evicted block is not the one that another policy would evict"),
        Goal("tie", "the evicted block is as good as another one up to its depth"),
        Goal("hole", "a hit ends at a hole: a later key is registered, one between is not"),
        Goal("hole_filled", "a key is registered before one that is registered already"),
        Goal("wrong_index", "a registered key is asked for at another index"),
        Goal("twin", "a key is registered that another block has"),
        Goal("copy_shared", "an append copies a block that another sequence holds"),
        Goal("copy_registered", "an append copies a registered block that nobody else holds"),
        Goal("copy_refused", "an append is refused for lack of the block to copy into"),
        Goal("copy_and_grow", "an append copies a block and takes further ones"),
        Goal("full_shared_tail", "an append behind a full shared block copies nothing"),
        Goal("divergent", "two sequences that share a block differ behind it"),
        Goal("shared", "a block is held by several sequences"),
        Goal("fork_mid_block", "a sequence is forked in the middle of a block"),
        Goal("fork_shorter", "a sequence is forked at fewer tokens than it has"),
        Goal("free_of_shared", "a sequence is freed whose blocks another one holds"),
        Goal("truncate_mid_block", "a sequence is cut in the middle of a block"),
        Goal("refused_allocation", "an allocation is refused"),
        Goal("refused_with_hit", "an allocation with a hit is refused"),
        Goal("refused_partly", "an allocation is refused with some blocks to be had"),
        Goal("physical_reuse", "a block is taken again"),
        Goal("evict_none_idle", "more blocks are to be evicted than are idle"),
        Goal("empty_sequence", "a sequence of no tokens is allocated"),
        Goal("append_to_empty", "a token is appended to a sequence of no tokens"),
        Goal("length_0_mod_block", "a sequence fills its last block"),
        Goal("length_1_mod_block", "a sequence has one token in its last block"),
        Goal("length_-1_mod_block", "a sequence lacks one token of filling its last block"),
        Goal("several_blocks", "an append takes several blocks"),
        Goal("reset_live", "a reset ends live sequences"),
        Goal("unknown_sequence", "a sequence that is not live is named"),
        Goal("live_sequence", "a new sequence has the name of a live one"),
        Goal("bad_argument", "an argument is out of range"),
        Goal("unknown_block", "the references of a block that is not there are asked for"),
    )

    def __init__(self, scope: PagedCacheScope, factory: Factory) -> None:
        self.shape = SHAPES[scope.shape]
        self._memories: dict[int, PagedMemory] = {}
        self._view: View | None = None
        super().__init__(scope, factory)

    def factory_arguments(self, scope: PagedCacheScope) -> dict[str, Any]:
        return {"blocks": scope.blocks, "block_size": scope.block_size, "policy": scope.policy, "shape": self.shape}

    @command(5)
    def allocate(self, pick: Pick) -> Op:
        """A new sequence, which asks for none, some or all of its full blocks as a prefix."""
        sequence, tokens = pick(self._new_names()), self._prompt(pick)
        full = len(tokens) // self.scope.block_size
        keys = pick(sorted({full, 0}, reverse=True) if self._wide else (full, full, full, 0, full // 2))
        op = Op("allocate", sequence=sequence, tokens=tokens, keys=keys)
        self._bound_uses(laws.run_of(self._asked(op), self.held.registered, self.held.lives))
        return op

    @command(5)
    def append(self, pick: Pick) -> Op:
        """A sequence grows by one token or by several."""
        growing = [s for s, t in self.held.tokens.items() if len(t) < self.scope.max_tokens]
        sequence = pick(growing if self._wide else [s for s in growing for _ in range(4 if self._must_copy(s) else 1)])
        room, size = self.scope.max_tokens - len(self.held.tokens[sequence]), self.scope.block_size
        n = pick([n for n in ((1, 2) if self._wide else (1, size + 1, 1, 2, 1, size)) if n <= room])
        return Op("append", sequence=sequence, tokens=[pick(self.scope.tokens) for _ in range(n)])

    @command(2)
    def truncate(self, pick: Pick) -> Op:
        """The last tokens of a sequence are taken back."""
        sequence = pick(list(self.held.tokens))
        return Op("truncate", sequence=sequence, tokens=pick(range(len(self.held.tokens[sequence]) + 1)))

    @command(3)
    def fork(self, pick: Pick) -> Op:
        """A sequence shares the first tokens of another one."""
        source = pick(list(self.held.tokens))
        child = pick(self._new_names())
        length = len(self.held.tokens[source])
        tokens = pick(range(length + 1) if self._wide else (None, max(0, length - 1), None, *range(length + 1)))
        self._bound_uses(self.held.tables[source][: self.held.blocks_for(tokens or 0)])
        return Op("fork", sequence=source, child=child, tokens=tokens)

    @command(3)
    def free(self, pick: Pick) -> Op:
        """A sequence ends."""
        return Op("free", sequence=pick(list(self.held.tokens)))

    @command(2)
    def finish(self, pick: Pick) -> Op:
        """A sequence ends and leaves its full blocks registered."""
        if self._wide:
            raise NotEnabled
        return Op("finish", sequence=pick(list(self.held.tokens)))

    @command(4)
    def register(self, pick: Pick) -> Op:
        """Full blocks of a sequence are registered, perhaps not from the first one on."""
        sequence = pick([s for s, t in self.held.tokens.items() if len(t) >= self.scope.block_size])
        full = len(self.held.tokens[sequence]) // self.scope.block_size
        first = pick(range(full) if self._wide else (0, full - 1, 0, *range(full)))
        return Op("register", sequence=sequence, first=first, blocks=pick(range(full - first, 0, -1)))

    @command(2)
    def lookup(self, pick: Pick) -> Op:
        """A prefix is looked up, perhaps without its first key."""
        return Op("lookup", tokens=self._prompt(pick), skip=pick((0, 1)))

    @command(1)
    def evict(self, pick: Pick) -> Op:
        """Idle blocks are freed, or now and then everything is forgotten."""
        idle = range(len(self.view.idle), 0, -1)
        if self._wide:
            return pick((Op("reset"), *(Op("evict", blocks=n) for n in idle)))
        blocks = pick(idle)
        return Op("reset") if pick((False, False, True)) else Op("evict", blocks=blocks)

    @command(1)
    def malformed(self, pick: Pick) -> Op:
        """A live sequence is begun again, cut or grown by a bad number, or registered where that is wrong."""
        size, stranger = self.scope.block_size, self.scope.sequences
        live = pick(list(self.held.tokens)[: 1 if self._wide else None])
        length = len(self.held.tokens[live])
        full = length // size
        return pick(
            (
                Op("register", sequence=live, first=full, blocks=1),
                Op("register", sequence=live, first=-1, blocks=1),
                Op("allocate", sequence=live, tokens=[self.scope.tokens[0]], keys=0),
                Op("fork", sequence=live, child=live, tokens=None),
                Op("fork", sequence=live, child=stranger, tokens=length + 1),
                Op("fork", sequence=live, child=stranger, tokens=-1),
                Op("append", sequence=live, tokens=[]),
                Op("truncate", sequence=live, tokens=length + 1),
                Op("truncate", sequence=live, tokens=-1),
                *([Op("register_as", sequence=live, first=0, keys=[1, 1])] if full > 1 else []),
                *(Op("register_as", sequence=live, first=i, keys=[1]) for i in self._registered_at(live)),
            )
        )

    @command(1)
    def foreign(self, pick: Pick) -> Op:
        """What is named is not there, more keys than tokens are given, or too much is to be evicted."""
        stranger, token = self.scope.sequences, [self.scope.tokens[0]]
        return pick(
            (
                Op("free", sequence=stranger),
                Op("append", sequence=stranger, tokens=token),
                Op("truncate", sequence=stranger, tokens=0),
                Op("fork", sequence=stranger, child=stranger, tokens=None),
                Op("register", sequence=stranger, first=0, blocks=0),
                Op("allocate", sequence=stranger, tokens=token * (2 * self.scope.block_size - 1), keys=2),
                Op("evict", blocks=-1),
                Op("evict", blocks=len(self.view.idle) + 1),
                Op("ref_count", block=self.scope.blocks),
                Op("ref_count", block=-1),
            )
        )

    @property
    def view(self) -> View:
        """What the reference looks like; looked at when it is asked for, since most redone steps are not."""
        if self._view is None:
            self._view = self.observe(self.reference)
        return self._view

    @view.setter
    def view(self, view: View) -> None:
        self._view = view

    def step(self, op: Op) -> Any:
        self._require_legal(op)
        self._view = self.view
        return super().step(op)

    def redo(self, op: Op) -> None:
        outcome = guarded(self.perform, self.reference, op)
        guarded(self.perform, self.target, op)
        self.held = self.holds_after(self.held, op, outcome)
        self._view = None

    def perform(self, system: Any, op: Op) -> Any:
        args, memory = op.args, self._memory_of(system)
        sequence: int = args.get("sequence", 0)
        answer: Any = None
        match op.name:
            case "allocate":
                tokens = args["tokens"]
                cached, blocks = system.allocate(sequence, len(tokens), laws.asked_keys(op, self.scope.block_size))
                answer = Allocation(cached, list(blocks))
                memory.write(system.table(sequence), tuple(tokens), cached)
            case "append":
                tokens = (*self.held.tokens.get(sequence, ()), *args["tokens"])
                blocks, copies = system.append(sequence, len(args["tokens"]))
                answer = Growth(list(blocks), [(source, target) for source, target in copies])
                memory.copy(answer.copies)
                memory.write(system.table(sequence), tokens, len(tokens) - len(args["tokens"]))
            case "truncate":
                system.truncate(sequence, args["tokens"])
            case "fork":
                answer = list(system.fork(sequence, args["child"], args["tokens"]))
            case "register":
                answer = system.register(
                    sequence, self._keys_from(sequence, args["first"], args["blocks"]), args["first"]
                )
            case "finish":
                full = len(self.held.tokens.get(sequence, ())) // self.scope.block_size
                system.register(sequence, self._keys_from(sequence, 0, full))
                system.free(sequence)
            case "register_as":
                answer = system.register(sequence, args["keys"], args["first"])
            case "lookup":
                answer = list(system.lookup(laws.asked_keys(op, self.scope.block_size)))
            case "evict":
                answer = list(system.evict(args["blocks"]))
            case "ref_count":
                answer = system.ref_count(args["block"])
            case _:
                getattr(system, op.name)(**args)
        memory.poison_freed(system.free_blocks())
        return answer

    def observe(self, system: Any) -> View:
        memory = self._memory_of(system)
        try:
            tables = {s: list(system.table(s)) for s in system.sequences()}
            lengths = {s: system.length(s) for s in tables}
            refs = [system.ref_count(block) for block in range(self.scope.blocks)]
        except ContractError as error:
            raise RuntimeError(f"a live sequence or a block of the pool is not known: {error}") from error
        registered = dict(system.registered())
        whole = [([block], self.scope.block_size) for block in registered.values()]
        read = memory.read([*((tables[s], lengths[s]) for s in tables), *whole])
        return View(
            tables,
            lengths,
            registered,
            list(system.free_blocks()),
            list(system.idle_blocks()),
            refs,
            system.statistics(),
            dict(zip(tables, read, strict=False)),
            dict(zip(registered, read[len(tables) :], strict=True)),
        )

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

    def notice(self, step: Step) -> None:
        reach, op = self.reach, step.op
        if isinstance(step.outcome, Refused):
            self._notice_refusal(step)
            return
        reach["shared"] += step.after.statistics.shared > 0
        match op.name:
            case "allocate":
                self._notice_hit(step)
                reach["empty_sequence"] += not op.args["tokens"]
                self._notice_length(len(op.args["tokens"]))
            case "append":
                self._notice_append(step)
            case "lookup":
                reach["wrong_index"] += op.args["skip"] > 0 and bool(set(self._asked(op)) & set(step.before.registered))
            case "register":
                keys = self._keys_from(op.args["sequence"], op.args["first"], op.args["blocks"])
                table = step.before.tables[op.args["sequence"]][op.args["first"] :]
                reach["twin"] += any(step.before.registered.get(k, b) != b for k, b in zip(keys, table, strict=False))
                later = self._keys_from(op.args["sequence"], 0, len(step.held.tokens[op.args["sequence"]]))
                reach["hole_filled"] += bool(set(later) & set(step.before.registered)) and step.outcome > 0
            case "fork":
                length = len(step.held.tokens[op.args["child"]])
                reach["fork_mid_block"] += length % self.scope.block_size > 0
                reach["fork_shorter"] += length < step.before.lengths[op.args["sequence"]]
            case "truncate":
                reach["truncate_mid_block"] += op.args["tokens"] % self.scope.block_size > 0
            case "free" | "finish":
                table = step.before.tables[op.args["sequence"]]
                reach["free_of_shared"] += any(step.after.refs[block] for block in table)
            case "reset":
                reach["reset_live"] += bool(step.before.tables)
        reach["physical_reuse"] += any(block in step.held_before.lives for block in laws.taken(step))
        if op.name != "reset" and (gone := laws.evicted(step)):
            self._notice_eviction(step, gone)

    def _notice_refusal(self, step: Step) -> None:
        reach, op = self.reach, step.op
        if step.outcome != Refused("OutOfSlots"):
            reach[REFUSED[step.outcome.error]] += 1
            return
        reach["evict_none_idle"] += op.name == "evict"
        reach["copy_refused"] += op.name == "append" and laws.copied_block(step) is not None and not step.before.free
        if op.name == "allocate":
            reach["refused_allocation"] += 1
            reach["refused_partly"] += bool(step.before.free or step.before.idle)
            reach["refused_with_hit"] += bool(laws.run_of(self._asked(op), step.before.registered, step.held.lives))

    def _notice_hit(self, step: Step) -> None:
        reach, size = self.reach, self.scope.block_size
        tokens, asked = step.op.args["tokens"], self._asked(step.op)
        hit = step.outcome.blocks[: step.outcome.cached // size]
        reach["hit"] += bool(hit)
        reach["full_prefix_hit"] += 0 < step.outcome.cached == len(tokens)
        reach["idle_hit"] += any(block in step.before.idle for block in hit)
        reach["partial_hit"] += 0 < len(hit) < len(asked)
        reach["hole"] += any(key in step.before.registered for key in asked[len(hit) + 1 :])
        gone = len(laws.evicted(step))
        reach["hit_saved"] += gone > 0 and any(block in step.before.idle[:gone] for block in hit)

    def _notice_append(self, step: Step) -> None:
        reach, size, sequence = self.reach, self.scope.block_size, step.op.args["sequence"]
        before, length = step.before.lengths[sequence], step.after.lengths[sequence]
        self._notice_length(length)
        reach["append_to_empty"] += before == 0
        reach["several_blocks"] += len(step.outcome.blocks) > 1
        reach["copy_and_grow"] += bool(step.outcome.copies and step.outcome.blocks)
        for source, _ in step.outcome.copies:
            reach["copy_shared" if step.after.refs[source] else "copy_registered"] += 1
        full = step.before.tables[sequence][-1:] if before % size == 0 else []
        reach["full_shared_tail"] += any(step.before.refs[block] > 1 for block in full)
        mine = step.held.tokens[sequence]
        for other, table in step.after.tables.items():
            if other != sequence and table[:1] == step.after.tables[sequence][:1]:
                theirs = step.held.tokens[other]
                reach["divergent"] += mine[: len(theirs)] != theirs[: len(mine)]

    def _notice_length(self, length: int) -> None:
        for residue in (0, 1, -1):
            self.reach[f"length_{residue}_mod_block"] += length > 0 and (length - residue) % self.scope.block_size == 0

    def _notice_eviction(self, step: Step, gone: list[int]) -> None:
        self.reach[f"eviction_{self.scope.policy}"] += 1
        idle, held = step.before.idle, step.held_before
        for policy in POLICIES:
            other = held._replace(policy=policy)
            self.reach["policies_differ"] += min(idle, key=lambda block: rank(other, block)) not in gone
        ranks = [rank(held, block)[:-1] for block in idle]
        self.reach["tie"] += any(ranks.count(rank(held, block)[:-1]) > 1 for block in gone)

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

    @property
    def _wide(self) -> bool:
        return self.scope.exhaustive

    def _bound_uses(self, blocks: Sequence[int]) -> None:
        """Keeps the states of an exhaustive scope finite where uses are part of them."""
        scope, lives = self.scope, self.held.lives
        if scope.exhaustive and scope.policy == "frequency" and any(lives[b].uses >= scope.max_uses for b in blocks):
            raise NotEnabled

    def _must_copy(self, sequence: int) -> bool:
        """Whether the sequence ends in a block that has room and is not its own to write."""
        table, registered = self.held.tables[sequence], self.held.registered.values()
        if not len(self.held.tokens[sequence]) % self.scope.block_size:
            return False
        return table[-1] in registered or sum(table[-1] in other for other in self.held.tables.values()) > 1

    def _new_names(self) -> list[int]:
        names = [s for s in range(self.scope.sequences) if s not in self.held.tokens]
        return names[:1] if self._wide else names

    def _prompt(self, pick: Pick) -> list[int]:
        scope = self.scope
        if self._wide:
            return list(pick(_all_sequences(scope.tokens, scope.max_tokens)))
        known = [*self.held.tokens.values(), *self.held.prefixes.values()]
        kind = pick(PROMPTS) if known else "fresh"
        base = list(pick(known)) if kind != "fresh" else []
        if kind in ("shorter", "branch"):
            base = base[: self._length(pick, len(base))]
        if kind in ("repeat", "shorter"):
            return base[: scope.max_tokens]
        more = self._length(pick, scope.max_tokens - len(base))
        return base + [pick(scope.tokens) for _ in range(more)]

    def _length(self, pick: Pick, most: int) -> int:
        """A length from 0 to `most`, near a multiple of the block, mostly a small one."""
        size = self.scope.block_size
        blocks = pick(range(most // size + 1)) if pick((False, False, True)) else pick((0, 1, 1, 2))
        return max(0, min(most, blocks * size + pick((-1, 0, 1))))

    def _asked(self, op: Op) -> list[int]:
        return laws.asked_keys(op, self.scope.block_size)

    def _keys_from(self, sequence: int, first: int, blocks: int) -> list[int]:
        """The keys of so many blocks of a sequence, made up where it has no full block."""
        keys = keys_of(self.held.tokens.get(sequence, ()), self.scope.block_size)
        return [keys[i] if 0 <= i < len(keys) else -1 - i for i in range(first, first + blocks)]

    def _registered_at(self, sequence: int) -> list[int]:
        table, registered = self.held.tables.get(sequence, ()), set(self.held.registered.values())
        full = len(self.held.tokens.get(sequence, ())) // self.scope.block_size
        return [i for i in range(full) if table[i] in registered]

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


@functools.cache
def _all_sequences(tokens: tuple[int, ...], longest: int) -> list[Tokens]:
    return [p for n in range(longest + 1) for p in itertools.product(tokens, repeat=n)]


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
