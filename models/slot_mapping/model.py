"""Model of slot_mapping: what an operation does to the rows, which goals it meets, and what makes it simpler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.model import Goal, Scope
from kvlockstep.models.core.op import Op, require
from kvlockstep.models.core.operations import Ints
from kvlockstep.models.core.picture import NOTHING, Picture, Table, numbers
from kvlockstep.models.core.whole import wholes
from kvlockstep.models.requests.adapter import named
from kvlockstep.models.slot_mapping.commands import BITS_32, MOST_BLOCKS, SlotMappingCommands, SlotMappingScope
from kvlockstep.properties.law import Step
from kvlockstep.properties.slot_mapping import LAWS, Held, View
from kvlockstep.reference.slot_mapping.contract import PAD_SLOT
from kvlockstep.reference.slot_mapping.mapping import SlotMapping


class SlotMappingModel(SlotMappingCommands):
    contract = "slot_mapping"
    laws = LAWS
    reference_type = SlotMapping
    scope_type = SlotMappingScope
    operations = {
        "add": {"row": int, "blocks": Ints},
        "append": {"row": int, "blocks": Ints},
        "clear": {"row": int},
        "move": {"source": int, "target": int},
        "swap": {"one": int, "other": int},
        "shard": {"ranks": int, "rank": int, "interleave": int},
        "commit": {},
        "slots": {"batch": Ints, "starts": Ints, "positions": Ints},
        "gather": {"batch": Ints, "padded": int},
    }
    scopes = (
        SlotMappingScope(3, 4, 2, 12, 9),
        SlotMappingScope(4, 3, 4, 20, 12),
        SlotMappingScope(2, 5, 1, 8, 7),
        SlotMappingScope(6, 8, 16, 64, 32, far=True),
        SlotMappingScope(3, 6, 8, 24, 30),
    )
    small_scopes = (
        SlotMappingScope(2, 1, 1, 1, 2, exhaustive=True),
        SlotMappingScope(1, 2, 1, 2, 2, exhaustive=True),
        SlotMappingScope(1, 1, 2, 3, 2, exhaustive=True),
    )
    goals = (
        Goal("replaced", "a row with blocks gets others"),
        Goal("appended", "a row grows"),
        Goal("appended_twice", "a row grows twice before a commit"),
        Goal("uncommitted", "a batch is mapped while a row has changes that are not committed"),
        Goal("shorter", "a commit leaves a row with fewer blocks than it had"),
        Goal("several", "a batch has several requests"),
        Goal("no_token", "a request of a batch has no token"),
        Goal("smaller_batch", "a batch is mapped behind a larger one"),
        Goal("full_buffer", "a batch fills the whole buffer"),
        Goal("far_slot", "a slot is beyond 32 bits", when="far_slots"),
        Goal("any_order", "a batch is not the first rows in their order", when="any_batch"),
        Goal("cleared", "a row with blocks is cleared", when="can_move"),
        Goal("moved", "a row is moved onto one with blocks", when="can_move"),
        Goal("swapped", "two rows of different lengths change places", when="can_move"),
        Goal("gathered", "several rows are gathered", when="can_gather"),
        Goal("padded_rows", "rows behind a batch are gathered", when="can_gather"),
        Goal("gathered_smaller", "a batch is gathered behind a larger one", when="can_gather"),
        Goal("sharded", "tokens of a batch belong to this worker and to others", when="can_shard"),
    )

    def factory_arguments(self, scope: SlotMappingScope) -> dict[str, Any]:
        return {name: getattr(scope, name) for name in ("rows", "width", "block_size", "tokens")}

    def step(self, op: Op) -> Any:
        require(self._legal(op))
        answer = super().step(op)
        self._stage(op)
        return answer

    def redo(self, op: Op) -> None:
        super().redo(op)
        self._stage(op)

    def _stage(self, op: Op) -> None:
        """Notes which rows have changed since the last commit."""
        if op.name in ("add", "append"):
            self._changed.add(op.args["row"])
        elif op.name == "commit":
            self._changed.clear()

    def perform(self, system: Any, op: Op) -> Any:
        arguments = [list(value) if isinstance(value, list) else value for value in op.args.values()]
        answer = getattr(system, op.name)(*arguments)
        if op.name == "slots":
            return wholes(answer)
        if op.name == "gather":
            return [wholes(row) for row in bounded(answer)]
        return None

    def observe(self, system: Any) -> View:
        return View([wholes(row) for row in bounded(system.committed())])

    def nothing_held(self) -> Held:
        scope, empty = self.scope, ((),) * self.scope.rows
        return Held(empty, empty, (1, 0, 1), scope.width, scope.block_size, scope.tokens)

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        args, rows = op.args, list(held.rows)
        match op.name:
            case "add":
                rows[args["row"]] = tuple(args["blocks"])
            case "append":
                rows[args["row"]] += tuple(args["blocks"])
            case "clear":
                rows[args["row"]] = ()
            case "move":
                rows[args["target"]], rows[args["source"]] = rows[args["source"]], ()
            case "swap":
                rows[args["one"]], rows[args["other"]] = rows[args["other"]], rows[args["one"]]
            case "commit":
                return held._replace(committed=held.rows)
            case "shard":
                return held._replace(shard=(args["ranks"], args["rank"], args["interleave"]))
        return held._replace(rows=tuple(rows))

    def notice(self, step: Step[View, Held]) -> None:
        met, args, before = self.goals_met, step.op.args, step.held_before
        match step.op.name:
            case "add":
                met["replaced"] += bool(before.rows[args["row"]]) and before.rows[args["row"]] != tuple(args["blocks"])
            case "append":
                met["appended"] += bool(args["blocks"] and before.rows[args["row"]])
                met["appended_twice"] += bool(args["blocks"]) and args["row"] in self._grown
                self._grown |= {args["row"]} if args["blocks"] else set()
            case "clear":
                met["cleared"] += bool(before.rows[args["row"]])
            case "move":
                met["moved"] += all(before.rows[args[name]] for name in ("source", "target"))
            case "swap":
                met["swapped"] += len(before.rows[args["one"]]) != len(before.rows[args["other"]])
            case "commit":
                rows = zip(before.committed, before.rows, strict=True)
                met["shorter"] += any(len(new) < len(old) for old, new in rows)
                self._grown.clear()
            case "slots":
                self._notice_slots(step)
            case "gather":
                met["gathered"] += len(args["batch"]) > 1
                met["padded_rows"] += 0 < len(args["batch"]) < args["padded"]
                met["gathered_smaller"] += len(args["batch"]) < self._gathered
                self._gathered = len(args["batch"])

    def _notice_slots(self, step: Step[View, Held]) -> None:
        met, args, tokens = self.goals_met, step.op.args, step.outcome[: len(step.op.args["positions"])]
        batch, starts = args["batch"], args["starts"]
        met["uncommitted"] += bool(tokens) and step.held.rows != step.held.committed
        met["several"] += len(set(starts)) > 2
        met["no_token"] += bool(tokens) and len(set(starts)) < len(starts)
        met["smaller_batch"] += 0 < len(tokens) < self._mapped
        met["full_buffer"] += len(tokens) == self.scope.tokens
        met["far_slot"] += any(slot >= BITS_32 for slot in tokens)
        met["any_order"] += bool(tokens) and batch != list(range(len(batch)))
        met["sharded"] += PAD_SLOT in tokens and any(slot != PAD_SLOT for slot in tokens)
        self._mapped = len(tokens)

    def fingerprint(self) -> Any:
        return self.held

    def draw(self, view: View) -> Picture:
        rows = [
            (str(row), numbers(blocks), numbers(host))
            for row, (blocks, host) in enumerate(zip(view.rows, self.held.rows, strict=True))
        ]
        ranks, rank, interleave = self.held.shard
        shard = ("worker", f"{rank} of {ranks}, {interleave} tokens at a time", "")
        return NOTHING._replace(tables=(Table("rows", ("row", "committed", "since then"), (*rows, shard)),))

    def unreachable(self) -> set[str]:
        return {goal.id for goal in self.goals if goal.when is not None and not getattr(self.traits, goal.when)}

    def describe(self) -> dict[str, Any]:
        return {**named(self.target), "traits": self.traits}

    @classmethod
    def simpler_scopes(cls, scope: SlotMappingScope) -> Iterable[Scope]:
        for name in ("rows", "width", "block_size", "tokens", "blocks"):
            size = getattr(scope, name)
            for smaller in sorted({1, 2, size // 2, size - 1}):
                if 0 < smaller < size:
                    changed: dict[str, Any] = {name: smaller}
                    yield replace(scope, **changed)

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        if op.name == "slots":
            batch, starts, positions = (op.args[name] for name in ("batch", "starts", "positions"))
            for i in range(len(batch)):
                start, stop = starts[i], starts[i + 1]
                for cut in {start, stop - 1} - {stop}:
                    gone = stop - cut
                    later = [place - gone for place in starts[i + 1 :]]
                    yield op.but(starts=[*starts[: i + 1], *later], positions=positions[:cut] + positions[stop:])
                if start == stop:
                    yield op.but(batch=batch[:i] + batch[i + 1 :], starts=starts[:i] + starts[i + 1 :])
        yield from super().simpler(op)

    def _legal(self, op: Op) -> bool:
        """Tells whether the caller may do this: a shorter trace may name rows and positions that there are not."""
        scope, args, held = self.scope, op.args, self.held
        rows = range(scope.rows)
        most = MOST_BLOCKS if scope.far and self.traits.far_slots else scope.blocks
        match op.name:
            case "add" | "append":
                kept = 0 if op.name == "add" or args["row"] not in rows else len(held.rows[args["row"]])
                if op.name == "add" and args["row"] in self._changed and not self.traits.replaces_staged:
                    return False
                fits = kept + len(args["blocks"]) <= scope.width
                return args["row"] in rows and fits and all(0 <= block < most for block in args["blocks"])
            case "clear":
                return self.can("clear") and args["row"] in rows
            case "move" | "swap":
                one, other = args.values()
                return self.can(op.name) and one in rows and other in rows and one != other
            case "shard":
                ranks, rank, interleave = args["ranks"], args["rank"], args["interleave"]
                fits = 0 <= rank < ranks <= 8 and interleave > 0 and scope.block_size % interleave == 0
                return self.can("shard") and fits
            case "gather":
                padded = args["padded"]
                return (
                    self.can("gather") and self._is_batch(args["batch"]) and len(args["batch"]) <= padded <= scope.rows
                )
            case "slots":
                return self._is_batch(args["batch"]) and self._is_covered(**args)
        return True

    def _is_batch(self, batch: list[int]) -> bool:
        known = all(0 <= row < self.scope.rows for row in batch) and len(set(batch)) == len(batch)
        return known and (self.traits.any_batch or batch == list(range(len(batch))))

    def _is_covered(self, batch: list[int], starts: list[int], positions: list[int]) -> bool:
        whole = len(starts) == len(batch) + 1 and starts == sorted(starts) and starts[0] == 0
        if not whole or starts[-1] != len(positions) or len(positions) > self.scope.tokens:
            return False
        covers = self.scope.block_size * self.held.shard[0]
        return all(
            0 <= position < len(self.held.committed[row]) * covers
            for row, start, stop in zip(batch, starts, starts[1:], strict=False)
            for position in positions[start:stop]
        )
