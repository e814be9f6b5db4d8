"""What can happen to a kv_store: writes, gathers, prefix and block copies of every shape, swaps, bad arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.model import Goal, LockstepModel, Scope, simpler_args
from kvlockstep.models.op import NotEnabled, Op, Pick, command
from kvlockstep.properties import kv_store as laws
from kvlockstep.properties.kv_store import NEGATIVE, TOO_SHORT, TOO_WIDE, Held, View, row_of
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.kv_store import KVStore
from kvlockstep.reference.paged_contract import ITEM_BYTES, LAYOUTS, PADDING, KVShape

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
    laws = laws.LAWS
    reference_type = KVStore
    scope_type = KVStoreScope
    scopes = tuple(_scopes())
    small_scopes = (
        KVStoreScope(3, 1, 1, 2, 1, 2, "float8_e4m3fn", "layer_major", (3,), exhaustive=True),
        KVStoreScope(2, 1, 2, 1, 1, 2, "float16", "slot_major", (1, 3), exhaustive=True),
        KVStoreScope(2, 2, 1, 1, 1, 2, "bfloat16", "slot_major", (1,), exhaustive=True),
    )
    goals = (
        Goal("overwritten", "a slot is written again"),
        Goal("one_layer", "a write touches one of several layers"),
        Goal("padding", "a write has padding among its slots"),
        Goal("all_padding", "a write has nothing but padding"),
        Goal("nothing", "nothing is written, copied or gathered"),
        Goal("special_bits", "NaNs and negative zeros are written"),
        Goal("special_copied", "NaNs and negative zeros are copied"),
        Goal("gathered_twice", "a slot is gathered twice in one call"),
        Goal("copy", "a block with content is copied"),
        Goal("run", "neighbouring blocks are copied to neighbouring blocks"),
        Goal("scattered", "blocks are copied that are no neighbours"),
        Goal("one_to_many", "one block is copied to several"),
        Goal("onto_itself", "a block is copied onto itself"),
        Goal("chain", "a block is a target and the source of another target"),
        Goal("cycle", "blocks change places"),
        Goal("prefix", "a prefix is copied that ends with a block"),
        Goal(
            "prefix_tail", "a prefix is copied that ends in the middle of a block, with content behind it in the target"
        ),
        Goal("prefix_nothing", "a prefix of no tokens is copied"),
        Goal("prefix_longer_table", "a prefix is copied that is shorter than its tables"),
        Goal("prefix_overlap", "a block is in both tables of a prefix copy at different places"),
        Goal("swap_out", "blocks with content are swapped out"),
        Goal("swap_in", "blocks with content are swapped in"),
        Goal("round_trip", "a block is swapped in after its device block was overwritten"),
        Goal("swap_many", "several blocks are swapped at once"),
        Goal("host_reuse", "a host block with content is overwritten"),
        Goal("repeated_target", "a target is named twice"),
        Goal("unknown_place", "a slot or block that is not there is named"),
        Goal("unknown_layer", "a layer that is not there is named"),
        Goal("bad_row", "a row has the wrong length or an element that is too wide"),
        Goal("short_table", "a table is too short for its prefix"),
        Goal("budget_exact", "a budget is a multiple of a block's bytes"),
        Goal("budget_one_less", "a budget lacks one byte of another block"),
        Goal("budget_negative", "a budget is negative"),
    )

    # Copies come before writes, so that exploration reaches a state by a copy where it can: what a copy leaves behind
    # besides its content shows in the steps from there.

    def factory_arguments(self, scope: KVStoreScope) -> dict[str, Any]:
        return {
            "blocks": scope.blocks,
            "block_size": scope.block_size,
            "host_blocks": scope.host_blocks,
            "shape": self._shape(),
            "layout": scope.layout,
        }

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
        source = _sample(pick, blocks, length)
        target = _sample(pick, blocks, length)
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
            padded = pick(([], [PADDING]))
            return Op(
                "write", layer=None, slots=[*padded, pick(slots)], stamps=[*(2 for _ in padded), pick(scope.stamps)]
            )
        chosen = _sample(pick, slots, pick((len(slots), 1, scope.block_size, 2, 1, 0)))
        chosen = [PADDING if pick((True, *[False] * 7)) else slot for slot in chosen]
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
            Op("write", layer=0, slots=[PADDING - 1], stamps=[1]),
            Op("write", layer=layers, slots=[0], stamps=[1]),
            Op("write", layer=-1, slots=[0], stamps=[1]),
            Op("write", layer=0, slots=[0], stamps=[]),
            *(Op("write", layer=0, slots=[0], stamps=[stamp]) for stamp in (TOO_WIDE, TOO_SHORT, NEGATIVE)),
            Op("write", layer=0, slots=[last, last], stamps=[1, 1]),
            Op("gather", layer=0, slots=[0, slots]),
            Op("gather", layer=0, slots=[PADDING]),
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

    def nothing_held(self) -> Held:
        return Held(self.scope.blocks, self.scope.block_size, self.scope.host_blocks, self._shape())

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        return held

    def notice(self, step: Step) -> None:
        reach, op = self.reach, step.op
        if isinstance(step.outcome, Refused):
            self._notice_refusal(step)
            return
        match op.name:
            case "write":
                self._notice_write(step)
            case "gather" | "gather_host":
                slots = op.args["slots"]
                reach["gathered_twice"] += len(set(slots)) < len(slots)
                reach["nothing"] += not slots
            case "blocks_within":
                rest = op.args["budget"] % (self.scope.block_size * self._shape().token_bytes)
                reach["budget_exact"] += rest == 0 < op.args["budget"]
                reach["budget_one_less"] += rest == self.scope.block_size * self._shape().token_bytes - 1
            case _:
                self._notice_copy(step)

    def _notice_refusal(self, step: Step) -> None:
        reach, args = self.reach, step.op.args
        targets = (
            args["slots"] if step.op.name == "write" else args.get("target", [t for _, t in args.get("pairs", ())])
        )
        reach["unknown_place"] += step.outcome.error == "UnknownSlot"
        reach["unknown_layer"] += not 0 <= (args.get("layer") or 0) < self.scope.layers
        reach["repeated_target"] += len(set(targets)) < len(targets)
        reach["bad_row"] += min(args.get("stamps", ()), default=0) < 0
        needed = -(-args.get("tokens", 0) // self.scope.block_size)
        reach["short_table"] += step.op.name == "copy_prefix" and needed > len(args["source"])
        reach["budget_negative"] += args.get("budget", 0) < 0

    def _notice_write(self, step: Step) -> None:
        reach, args = self.reach, step.op.args
        real = [slot for slot in args["slots"] if slot != PADDING]
        reach["nothing"] += not args["slots"]
        reach["padding"] += 0 < len(real) < len(args["slots"])
        reach["all_padding"] += not real and bool(args["slots"])
        reach["one_layer"] += args["layer"] is not None and self.scope.layers > 1
        reach["special_bits"] += any(stamp % 3 == 0 for stamp in args["stamps"])
        reach["overwritten"] += any(any(step.before.device[-1][0][slot]) for slot in real)

    def _notice_copy(self, step: Step) -> None:
        reach, op = self.reach, step.op
        places = laws.pairs_of(step)
        moved = [(s, t) for s, t in places if s != t]
        content = any(any(getattr(step.before, side)[-1][0][slot]) for (side, slot), _ in moved)
        reach["nothing"] += not places
        if op.name == "copy_prefix":
            self._notice_prefix(step, content)
            return
        special = laws.SPECIAL_BITS[self.scope.dtype][:3]
        reach["special_copied"] += any(
            bits in special for (side, slot), _ in moved for bits in getattr(step.before, side)[-1][0][slot]
        )
        if op.name != "copy_blocks":
            reach[op.name] += content
            reach["swap_many"] += len(op.args["pairs"]) > 1
            full = any(any(step.before.host[-1][0][slot]) for _, (_, slot) in places if op.name == "swap_out")
            reach["host_reuse"] += full
            reach["round_trip"] += op.name == "swap_in" and content and step.before.device != step.after.device
            return
        pairs = op.args["pairs"]
        sources, targets = {s for s, t in pairs if s != t}, {t for s, t in pairs if s != t}
        reach["copy"] += content
        reach["run"] += any((s + 1, t + 1) in pairs for s, t in pairs if s != t)
        reach["scattered"] += len(sources) > 1 and not any((s + 1, t + 1) in pairs for s, t in pairs)
        reach["one_to_many"] += len(sources) < sum(s != t for s, t in pairs)
        reach["onto_itself"] += any(s == t for s, t in pairs)
        reach["chain"] += content and bool(sources & targets) and sources != targets
        reach["cycle"] += content and len(sources) > 1 and sources == targets

    def _notice_prefix(self, step: Step, content: bool) -> None:
        reach, args, size = self.reach, step.op.args, self.scope.block_size
        needed = -(-args["tokens"] // size)
        source, target = args["source"][:needed], args["target"][:needed]
        reach["prefix_nothing"] += args["tokens"] == 0
        reach["prefix"] += content and args["tokens"] % size == 0
        reach["prefix_longer_table"] += 0 < needed < len(args["source"])
        reach["prefix_overlap"] += content and any(s in target and s != t for s, t in zip(source, target, strict=True))
        if args["tokens"] % size:
            reach["prefix_tail"] += content and any(step.before.device[-1][0][target[-1] * size + size - 1])

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
            chosen = _sample(pick, list(range(targets)), pick(range(1, min(targets, 2) + 1)))
            return [(pick(range(sources)), target) for target in chosen]
        kind = pick(PAIR_KINDS)
        n = pick(range(most, -1 if kind == "any" else 0, -1))
        if kind == "any":
            return [(pick(range(sources)), target) for target in _sample(pick, list(range(targets)), n)]
        if kind == "run":
            first, to = pick(range(sources - n + 1)), pick(range(targets - n + 1))
            return [(first + i, to + i) for i in range(n)]
        blocks = _sample(pick, list(range(min(sources, targets))), n)
        after = [*blocks[1:], blocks[0]]
        pairs = list(zip(blocks, after, strict=True))
        return pairs[:-1] if kind == "chain" and n > 1 else pairs


def _sample(pick: Pick, options: list[int], n: int) -> list[int]:
    """`n` different options in any order, or all of them if there are fewer."""
    rest, chosen = list(options), []
    for _ in range(min(n, len(rest))):
        chosen.append(pick(rest))
        rest.remove(chosen[-1])
    return chosen
