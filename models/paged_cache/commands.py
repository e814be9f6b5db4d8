"""Commands of paged_cache: sequences that share prefixes, fork, grow and shrink; and misuse."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvlockstep.models.core.lazy_view import LazyViewModel
from kvlockstep.models.core.model import Scope
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command
from kvlockstep.models.paged_cache.operations import OPERATIONS
from kvlockstep.properties.paged_cache.state import Tokens, asked_keys, run_of
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.paged_cache.contract import POLICIES

SHAPES = (
    KVShape(1, 1, 1, "float32"),
    KVShape(1, 1, 2, "bfloat16"),
    KVShape(1, 2, 2, "float8_e4m3fn"),
    KVShape(1, 1, 2, "float16"),
    KVShape(1, 1, 4, "int8"),
)
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


class PagedCommands(LazyViewModel[PagedCacheScope]):
    """The commands, and how they choose names, prompts and lengths."""

    scope_type = PagedCacheScope
    operations = OPERATIONS
    scopes = tuple(_scopes())
    small_scopes = (
        PagedCacheScope(2, 1, "lru", 2, 2, exhaustive=True, aged=True),
        PagedCacheScope(2, 1, "fifo", 2, 2, (1,), exhaustive=True),
        PagedCacheScope(2, 1, "frequency", 2, 2, (1,), exhaustive=True),
        PagedCacheScope(3, 2, "lru", 2, 4, (1,), exhaustive=True),
        PagedCacheScope(2, 2, "fifo", 2, 3, (1,), exhaustive=True),
        PagedCacheScope(2, 2, "frequency", 2, 3, (1,), exhaustive=True),
    )

    @command(5)
    def allocate(self, pick: Pick) -> Op:
        """A new sequence, which asks for none, some or all of its full blocks as a prefix."""
        sequence, tokens = pick(self._new_names()), self._prompt(pick)
        full = len(tokens) // self.scope.block_size
        keys = pick(sorted({full, 0}, reverse=True) if self._wide else (full, full, full, 0, full // 2))
        op = Op("allocate", sequence=sequence, tokens=tokens, keys=keys)
        self._bound_uses(run_of(asked_keys(op, self.scope.block_size), self.held.registered, self.held.lives))
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
        """Proposes calls with an unknown name, with more keys than tokens, or with too much to evict."""
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
    def _wide(self) -> bool:
        return self.scope.exhaustive

    def _bound_uses(self, blocks: Sequence[int]) -> None:
        """Keeps the states of an exhaustive scope finite where uses are part of them."""
        scope, lives = self.scope, self.held.lives
        if scope.exhaustive and scope.policy == "frequency" and any(lives[b].uses >= scope.max_uses for b in blocks):
            raise NotEnabled

    def _must_copy(self, sequence: int) -> bool:
        """True if the sequence ends in a block that has room and that it must not write."""
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

    def _registered_at(self, sequence: int) -> list[int]:
        table, registered = self.held.tables.get(sequence, ()), set(self.held.registered.values())
        full = len(self.held.tokens.get(sequence, ())) // self.scope.block_size
        return [i for i in range(full) if table[i] in registered]


@functools.cache
def _all_sequences(tokens: tuple[int, ...], longest: int) -> list[Tokens]:
    return [p for n in range(longest + 1) for p in itertools.product(tokens, repeat=n)]
