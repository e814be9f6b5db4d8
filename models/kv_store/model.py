"""Model of kv_store: writes, gathers, prefix and block copies of every shape, swaps, bad arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Scope, simpler_args
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command, sample
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_store.goals import GOALS, notice
from kvlockstep.models.kv_store.operations import OPERATIONS
from kvlockstep.models.kv_store.picture import picture
from kvlockstep.properties.kv_store import LAWS, NEGATIVE, TOO_SHORT, TOO_WIDE, Held, View, row_of
from kvlockstep.properties.law import Step
from kvlockstep.reference.kv.shape import ITEM_BYTES, KVShape
from kvlockstep.reference.kv_store import LAYOUTS, PAD_SLOT, KVStore

STAMPS = tuple(range(1, 48))
MOST_PAIRS = 4
PAIR_KINDS = ("any", "any", "run", "chain", "cycle")


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


def _scopes() -> Iterable[KVStoreScope]:
    sizes = [
        (3, 1, 2),
        (4, 2, 3),
        (2, 4, 2),
        (6, 1, 1),
        (5, 2, 4),
        (3, 4, 3),
        (2, 16, 1),
        (8, 2, 2),
        (4, 3, 0),
        (0, 2, 1),
    ]
    shapes = itertools.cycle(((1, 1, 2), (2, 1, 2), (3, 2, 1), (2, 2, 2)))
    dtypes = itertools.cycle(ITEM_BYTES)
    for blocks, size, host in sizes:
        for layout in LAYOUTS:
            yield KVStoreScope(blocks, size, host, *next(shapes), next(dtypes), layout)


class KVStoreModel(LockstepModel[KVStoreScope]):
    contract = "kv_store"
    laws = LAWS
    reference_type = KVStore
    scope_type = KVStoreScope
    operations = OPERATIONS
    scopes = tuple(_scopes())
    small_scopes = (
        KVStoreScope(3, 1, 1, 2, 1, 2, "float8_e4m3fn", "layer_major", (3,), exhaustive=True),
        KVStoreScope(2, 1, 2, 1, 1, 2, "float16", "slot_major", (1, 3), exhaustive=True),
        KVStoreScope(2, 2, 1, 1, 1, 2, "bfloat16", "slot_major", (1,), exhaustive=True),
    )
    goals = GOALS

    def factory_arguments(self, scope: KVStoreScope) -> dict[str, Any]:
        return {
            "blocks": scope.blocks,
            "block_size": scope.block_size,
            "host_blocks": scope.host_blocks,
            "shape": self._shape(),
            "layout": scope.layout,
        }

    # Copies come before writes, so that exploration reaches a state by a copy where it can: what a copy leaves behind
    # besides its content shows in the steps from there.
    @command(5)
    def copy_blocks(self, pick: Pick) -> Op:
        """Blocks are copied: apart, in runs, in chains or in cycles."""
        return Op("copy_blocks", pairs=self._pairs(pick, self.scope.blocks, self.scope.blocks))

    @command(4)
    def copy_prefix(self, pick: Pick) -> Op:
        """A prefix is copied from one table to another, which may share blocks."""
        scope = self.scope
        blocks = list(range(scope.blocks))
        length = pick(range(1, min(scope.blocks, 2 if scope.exhaustive else scope.blocks) + 1))
        source = sample(pick, blocks, length)
        target = sample(pick, blocks, length)
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
        return Op("swap_out", pairs=self._pairs(pick, self.scope.blocks, self.scope.host_blocks))

    @command(3)
    def swap_in(self, pick: Pick) -> Op:
        """Blocks are copied from the host."""
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

    @command(1)
    def blocks_within(self, pick: Pick) -> Op:
        """The blocks that fit in a budget are asked for."""
        block_bytes = self.scope.block_size * self._shape().token_bytes
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
        ]
        return pick(bad)

    def perform(self, system: Any, op: Op) -> Any:
        args = op.args
        match op.name:
            case "write":
                layers = range(self.scope.layers) if args["layer"] is None else (args["layer"],)
                for layer in layers:
                    k, v = ([row_of(s, layer, plane, self._shape()) for s in args["stamps"]] for plane in (0, 1))
                    system.write(layer, list(args["slots"]), k, v)
                    # A store that keeps the caller's rows instead of their bits shows.
                    for row in (*k, *v):
                        row.clear()
                return None
            case "gather" | "gather_host":
                keys, values = getattr(system, op.name)(args["layer"], list(args["slots"]))
                return keys, values
            case "copy_prefix":
                return system.copy_prefix(list(args["source"]), list(args["target"]), args["tokens"])
            case "blocks_within":
                return system.blocks_within(args["budget"])
        return getattr(system, op.name)([(source, target) for source, target in args["pairs"]])

    def observe(self, system: Any) -> View:
        scope = self.scope
        slots, host = list(range(self._slots())), list(range(scope.host_blocks * scope.block_size))
        layers = range(scope.layers)
        return View(
            [system.gather(layer, slots) for layer in layers],
            [system.gather_host(layer, host) for layer in layers],
            system.memory_bytes,
        )

    def draw(self, view: View) -> Picture:
        return picture(view, self.held)

    def nothing_held(self) -> Held:
        return Held(self.scope.blocks, self.scope.block_size, self.scope.host_blocks, self._shape())

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        return held

    def notice(self, step: Step[View, Held]) -> None:
        notice(self.goals_met, step)

    def fingerprint(self) -> Any:
        view = self.view
        return tuple(tuple(tuple(row) for rows in planes for row in rows) for planes in (*view.device, *view.host))

    @classmethod
    def simpler_scopes(cls, scope: KVStoreScope) -> Iterable[Scope]:
        for name in ("layers", "heads", "head_dim", "block_size", "blocks", "host_blocks"):
            size = getattr(scope, name)
            for smaller in sorted({1, size // 2, size - 1}):
                if 0 < smaller < size:
                    yield replace(scope, **{name: smaller})

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        if op.name == "write":
            for i in range(min(len(op.args["slots"]), len(op.args["stamps"]))):
                fewer = {name: [v for j, v in enumerate(op.args[name]) if j != i] for name in ("slots", "stamps")}
                yield op.but(**fewer)
        for simpler in simpler_args(op):
            if all(len(pair) == 2 for pair in simpler.args.get("pairs", ())):
                yield simpler

    def _shape(self) -> KVShape:
        scope = self.scope
        return KVShape(scope.layers, scope.heads, scope.head_dim, scope.dtype)

    def _slots(self) -> int:
        return self.scope.blocks * self.scope.block_size

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
