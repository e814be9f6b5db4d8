"""Model of kv_store: what an operation does, what is seen of a store, and what makes an operation simpler."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.model import Scope, simpler_args
from kvlockstep.models.core.op import Op, require
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_store.commands import KVStoreCommands, KVStoreScope
from kvlockstep.models.kv_store.goals import GOALS, notice, unreachable
from kvlockstep.models.kv_store.operations import OPERATIONS
from kvlockstep.models.kv_store.picture import picture
from kvlockstep.models.requests.adapter import named
from kvlockstep.properties.kv_store import LAWS, Held, View, row_of
from kvlockstep.properties.law import Step
from kvlockstep.reference.kv.shape import ITEM_BYTES
from kvlockstep.reference.kv_store.contract import LAYOUTS
from kvlockstep.reference.kv_store.shifts import shifts_of
from kvlockstep.reference.kv_store.store import KVStore


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


class KVStoreModel(KVStoreCommands):
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
            "shape": self.shape,
            "layout": scope.layout,
        }

    def step(self, op: Op) -> Any:
        require(self._legal(op))
        return super().step(op)

    def perform(self, system: Any, op: Op) -> Any:
        args = op.args
        match op.name:
            case "write":
                layers = range(self.scope.layers) if args["layer"] is None else (args["layer"],)
                for layer in layers:
                    k, v = ([row_of(s, layer, plane, self.shape) for s in args["stamps"]] for plane in (0, 1))
                    system.write(layer, list(args["slots"]), k, v)
                    # A store that keeps the caller's rows instead of their bits shows.
                    for row in (*k, *v):
                        row.clear()
                return None
            case "gather" | "gather_host" | "scales" | "scales_host":
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
        device = [tuple(bounded(system.gather(layer, slots))) for layer in layers]
        hosted = [tuple(bounded(system.gather_host(layer, host))) for layer in layers]
        if self.traits.quantises:
            device = [(*rows, *bounded(system.scales(layer, slots))) for layer, rows in enumerate(device)]
            hosted = [(*rows, *bounded(system.scales_host(layer, host))) for layer, rows in enumerate(hosted)]
        return View(device, hosted, system.memory_bytes, system.strays() if self.traits.guarded else 0)

    def draw(self, view: View) -> Picture:
        return picture(view, self.held)

    def nothing_held(self) -> Held:
        return Held(self.scope.blocks, self.scope.block_size, self.scope.host_blocks, self.shape)

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        return held

    def unreachable(self) -> set[str]:
        return unreachable(self.traits)

    def describe(self) -> dict[str, Any]:
        return {**named(self.target), "traits": self.traits}

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

    def _legal(self, op: Op) -> bool:
        """Tells whether the traits allow an operation; a simpler one may have other pairs."""
        if not self.can(op.name):
            return False
        args = op.args
        pairs = (
            list(zip(args["source"], args["target"], strict=False))
            if op.name == "copy_prefix"
            else args.get("pairs", ())
        )
        if self.traits.shifts and op.name == "copy_rows" and self._takes(pairs):
            found = shifts_of(pairs, self.scope.block_size)
            return found is not None and found.rows <= self.traits.shifts
        within = self.traits.apart and op.name in ("copy_blocks", "copy_prefix", "copy_rows")
        return not within or not {s for s, _ in pairs} & {t for _, t in pairs}

    def _takes(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Tells whether a move of rows is one that no target refuses."""
        places, targets = range(self._slots()), [target for _, target in pairs]
        return len(set(targets)) == len(targets) and all(place in places for pair in pairs for place in pair)
