"""Commands of kv_store: writes, gathers, prefix, block and row copies of every shape, swaps, bad arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import gcd
from typing import Any

from kvlockstep.models.core.calls import call_target
from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Divergence, Factory, Scope
from kvlockstep.models.core.op import Command, NotEnabled, Op, Pick, command, require, sample
from kvlockstep.models.requests.adapter import read_traits
from kvlockstep.properties.kv_store import NEGATIVE, TOO_SHORT, TOO_WIDE
from kvlockstep.properties.law import Refused
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store.contract import COPIES, PAD_SLOT, StoreTraits

STAMPS = tuple(range(1, 48))
MOST_PAIRS = 4
PAIR_KINDS = ("any", "any", "run", "chain", "cycle")
# The operations that need a trait.
NEEDED = {"copy_rows": "copies_rows", "scales": "quantises", "scales_host": "quantises"}
# In which dtype rows are given, and in which one codes are kept, in a scope of this dtype.
QUANTISED = {
    "float32": ("float32", "int8"),
    "bfloat16": ("bfloat16", "float8_e4m3fn"),
    "float16": ("float16", "int8"),
    "float8_e4m3fn": ("float32", "float8_e4m3fn"),
    "int8": ("bfloat16", "int8"),
}


@dataclass(frozen=True)
class KVStoreScope(Scope):
    """Tokens are written with `stamps`, all of STAMPS if empty. `exhaustive`: few operations, but each of them."""

    blocks: int
    block_size: int
    host_blocks: int
    layers: int
    heads: int
    head_dim: int
    dtype: str
    layout: str
    stamps: tuple[int, ...] = ()
    exhaustive: bool = False

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_json().items() if name not in ("stamps", "exhaustive")}


class KVStoreCommands(LockstepModel[KVStoreScope]):
    def __init__(self, scope: KVStoreScope, factory: Factory) -> None:
        self.traits = traits_of(factory)
        self.shape = shape_of(scope, self.traits)
        super().__init__(scope, factory)

    @property
    def table(self) -> tuple[Command, ...]:
        return _table(self.traits)

    @classmethod
    def commands_for(cls, factory: Factory | None) -> tuple[Command, ...]:
        traits = traits_of(factory) if factory is not None else None
        return tuple(c for c in cls.commands if c.needs is None or traits is None or getattr(traits, c.needs))

    # Copies come before writes, so that exploration reaches a state by a copy where it can: what a copy leaves behind
    # besides its content shows in the steps from there.
    @command(5)
    def copy_blocks(self, pick: Pick) -> Op:
        """Blocks are copied: apart, in runs, in chains or in cycles."""
        require(self.can("copy_blocks"))
        return Op("copy_blocks", pairs=self._pairs_within(pick, self.scope.blocks))

    @command(4)
    def copy_prefix(self, pick: Pick) -> Op:
        """A prefix is copied from one table to another, which may share blocks."""
        require(self.can("copy_prefix"))
        scope = self.scope
        blocks = list(range(scope.blocks))
        most = scope.blocks // 2 if self.traits.apart else scope.blocks
        length = pick(range(1, min(most, 2 if scope.exhaustive else most) + 1))
        source = sample(pick, blocks, length)
        target = sample(pick, [b for b in blocks if b not in source] if self.traits.apart else blocks, length)
        if scope.exhaustive:
            tokens = pick(range((length - 1) * (scope.block_size + 1), length * scope.block_size + 1))
        else:
            tokens = max(
                0, min(length * scope.block_size, pick(range(length + 1)) * scope.block_size + pick((-1, 0, 0, 1)))
            )
        return Op("copy_prefix", source=source, target=target, tokens=tokens)

    @command(3)
    def swap_out(self, pick: Pick) -> Op:
        """Blocks are copied to the host."""
        require(self.can("swap_out"))
        return Op("swap_out", pairs=self._pairs(pick, self.scope.blocks, self.scope.host_blocks))

    @command(3)
    def swap_in(self, pick: Pick) -> Op:
        """Blocks are copied from the host."""
        require(self.can("swap_in"))
        return Op("swap_in", pairs=self._pairs(pick, self.scope.host_blocks, self.scope.blocks))

    @command(6)
    def write(self, pick: Pick) -> Op:
        """K and V of some tokens are written, in one layer or in all."""
        scope, slots = self.scope, list(range(self._slots()))
        if scope.exhaustive:
            padded = pick(([], [PAD_SLOT]))
            return Op(
                "write", layer=None, slots=[*padded, pick(slots)], stamps=[*(2 for _ in padded), pick(scope.stamps)]
            )
        chosen = sample(pick, slots, pick((len(slots), 1, scope.block_size, 2, 1, 0)))
        chosen = [PAD_SLOT if pick((True, *[False] * 7)) else slot for slot in chosen]
        layer = pick((None, *range(scope.layers)))
        return Op("write", layer=layer, slots=chosen, stamps=[pick(scope.stamps or STAMPS) for _ in chosen])

    @command(2)
    def gather(self, pick: Pick) -> Op:
        """Some slots are read, on the device or on the host."""
        scope = self.scope
        side = pick(("gather", "gather", "gather_host")[scope.exhaustive :])
        slots = range((scope.host_blocks if side == "gather_host" else scope.blocks) * scope.block_size)
        if scope.exhaustive:
            return Op(side, layer=scope.layers - 1, slots=[*reversed(slots), slots[0]])
        count = pick((0, 1, 2, 3, 5)) if slots else 0
        return Op(side, layer=pick(range(scope.layers)), slots=[pick(slots) for _ in range(count)])

    @command(4, needs="copies_rows")
    def copy_rows(self, pick: Pick) -> Op:
        """Slots are copied to slots, wherever they are in their blocks."""
        require(self.can("copy_rows"))
        if self.traits.shifts:
            return Op("copy_rows", pairs=self._shifts(pick))
        return Op("copy_rows", pairs=self._pairs_within(pick, self._slots()))

    @command(1, needs="quantises")
    def scales(self, pick: Pick) -> Op:
        """The scales of some slots are read, on the device or on the host."""
        require(self.can("scales"))
        side = pick(("scales", "scales_host"))
        slots = range((self.scope.host_blocks if side == "scales_host" else self.scope.blocks) * self.scope.block_size)
        count = min(len(slots), pick((0, 1, 2, 3)))
        return Op(side, layer=pick(range(self.scope.layers)), slots=[pick(slots) for _ in range(count)])

    @command(1)
    def blocks_within(self, pick: Pick) -> Op:
        """The blocks that fit in a budget are asked for."""
        block_bytes = self.scope.block_size * self.shape.token_bytes
        return Op("blocks_within", budget=max(-1, pick((0, 1, 2, 1000)) * block_bytes + pick((-1, 0, 1))))

    @command(2)
    def malformed(self, pick: Pick) -> Op:
        """An argument is out of range, repeated, or of the wrong size."""
        scope = self.scope
        slots, blocks, host, layers = self._slots(), scope.blocks, scope.host_blocks, scope.layers
        if not blocks:
            raise NotEnabled
        last = blocks - 1
        bad = [
            Op("write", layer=0, slots=[0, slots], stamps=[1, 1]),
            Op("write", layer=0, slots=[PAD_SLOT - 1], stamps=[1]),
            Op("write", layer=layers, slots=[0], stamps=[1]),
            Op("write", layer=-1, slots=[0], stamps=[1]),
            Op("write", layer=0, slots=[0], stamps=[]),
            *(Op("write", layer=0, slots=[0], stamps=[stamp]) for stamp in (TOO_WIDE, TOO_SHORT, NEGATIVE)),
            Op("write", layer=0, slots=[last, last], stamps=[1, 1]),
            Op("gather", layer=0, slots=[0, slots]),
            Op("gather", layer=0, slots=[PAD_SLOT]),
            Op("gather", layer=layers, slots=[0]),
            Op("gather_host", layer=0, slots=[host * scope.block_size]),
            Op("copy_prefix", source=[0], target=[last], tokens=scope.block_size + 1),
            Op("copy_prefix", source=[0], target=[last], tokens=-1),
            Op("copy_prefix", source=[blocks], target=[last], tokens=1),
            Op("copy_prefix", source=[0], target=[-1], tokens=1),
            Op("copy_prefix", source=[0, last], target=[last, last], tokens=2 * scope.block_size),
            Op("copy_blocks", pairs=[(0, last), (last, last)]),
            Op("copy_blocks", pairs=[(0, last), (0, blocks)]),
            Op("copy_blocks", pairs=[(0, last), (-1, 0)]),
            Op("swap_out", pairs=[(0, host)]),
            Op("swap_out", pairs=[(-1, 0)] if host else [(blocks, host)]),
            Op("swap_in", pairs=[(host, 0)]),
            *(Op("swap_out", pairs=[(0, 0), (last, 0)]) for _ in range(host > 0)),
            *(Op("swap_in", pairs=[(0, 0), (host - 1, 0)]) for _ in range(host > 0)),
            Op("copy_rows", pairs=[(0, slots - 1), (slots, 0)]),
            Op("copy_rows", pairs=[(0, slots - 1), (slots - 1, slots - 1)]),
            Op("scales", layer=layers, slots=[0]),
            Op("scales", layer=0, slots=[slots]),
        ]
        return pick([op for op in bad if self.can(op.name)])

    def can(self, operation: str) -> bool:
        """Tells whether the target has an operation, by its traits."""
        if operation in COPIES:
            return operation in self.traits.copies.split()
        return operation not in NEEDED or bool(getattr(self.traits, NEEDED[operation]))

    def _slots(self) -> int:
        return self.scope.blocks * self.scope.block_size

    def _pairs_within(self, pick: Pick, count: int) -> list[tuple[int, int]]:
        """Pairs on the device, between so many places; with `apart` none of them is a source and a target."""
        if not self.traits.apart:
            return self._pairs(pick, count, count)
        targets = sample(pick, range(count), pick(range(min(count // 2, MOST_PAIRS) + 1)))
        rest = [place for place in range(count) if place not in targets]
        return [(pick(rest), target) for target in targets]

    def _shifts(self, pick: Pick) -> list[tuple[int, int]]:
        """Rows that move to the front of their blocks, by a distance of each block's own."""
        size = self.scope.block_size
        count = min(self.traits.shifts, size - 1) - pick(range(min(self.traits.shifts, size - 1) + 1))
        blocks = sample(pick, range(self.scope.blocks), pick(range(min(self.scope.blocks, MOST_PAIRS), -1, -1)))
        pairs: list[tuple[int, int]] = []
        for first in (block * size for block in blocks if count):
            by = pick(range(1, size - count + 1))
            pairs += [(first + by + i, first + i) for i in range(count)]
        return pairs

    def _pairs(self, pick: Pick, sources: int, targets: int) -> list[tuple[int, int]]:
        """Pairs with different targets, between blocks of one or of two sides."""
        if not sources or not targets:
            raise NotEnabled
        most = min(sources, targets, MOST_PAIRS)
        if self.scope.exhaustive:
            chosen = sample(pick, range(targets), pick(range(1, min(targets, 2) + 1)))
            return [(pick(range(sources)), target) for target in chosen]
        kind = pick(PAIR_KINDS)
        n = pick(range(most, -1 if kind == "any" else 0, -1))
        if kind == "any":
            return [(pick(range(sources)), target) for target in sample(pick, range(targets), n)]
        if kind == "run":
            first, to = pick(range(sources - n + 1)), pick(range(targets - n + 1))
            return [(first + i, to + i) for i in range(n)]
        blocks = sample(pick, range(min(sources, targets)), n)
        after = [*blocks[1:], blocks[0]]
        pairs = list(zip(blocks, after, strict=True))
        return pairs[:-1] if kind == "chain" and n > 1 else pairs


@cache
def _table(traits: StoreTraits) -> tuple[Command, ...]:
    """The commands of a target with these traits, each as often as it weighs."""
    commands = (c for c in KVStoreCommands.commands if c.needs is None or getattr(traits, c.needs))
    return tuple(c for c in commands for _ in range(c.weight))


@lru_cache(maxsize=16)
def traits_of(factory: Factory) -> StoreTraits:
    """The traits of what a factory makes: one instance tells. What is wrong with it shows when the episode begins.

    Raises Divergence for a trait that cannot be.
    """
    try:
        made = call_target(factory, *CONTRACTS["kv_store"].probe.values())
    except Divergence:
        return StoreTraits()
    return StoreTraits() if isinstance(made, Refused) else read_traits(made, StoreTraits)


def shape_of(scope: KVStoreScope, traits: StoreTraits) -> KVShape:
    """The shape of a scope for a target with these traits."""
    shape = KVShape(scope.layers, scope.heads, scope.head_dim, scope.dtype)
    if traits.quantises:
        given, kept = QUANTISED[scope.dtype]
        shape = shape._replace(dtype=kept, given=given)
    row = shape.heads * shape.head_dim * shape.item_bytes
    return shape._replace(head_dim=shape.head_dim * traits.word // gcd(row, traits.word))
