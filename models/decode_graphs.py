"""Model of decode_graphs: rows come and go, the table moves, graphs are captured and replayed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Goal, Scope
from kvlockstep.models.core.op import Op, Pick, command, sample
from kvlockstep.models.core.operations import Ints, Size
from kvlockstep.models.core.picture import FREE, HELD, UNKNOWN, Cell, Picture, Table, numbers
from kvlockstep.models.core.whole import whole, wholes_at_once
from kvlockstep.properties.decode_graphs import LAWS, Held, View, decoded
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.decode_graphs import DecodeGraphs
from kvlockstep.reference.decode_graphs.contract import FULL, REFUSED, Lane
from kvlockstep.reference.errors import ContractError

STAMPS = tuple(range(1, 40))
WIDEST = 4
CALLS = ("admit", "release", "widen", "begin_capture", "replay")


@dataclass(frozen=True)
class DecodeGraphsScope(Scope):
    """`exhaustive`: few choices, but each of them."""

    rows: int
    width: int
    blocks: int
    block_size: int
    exhaustive: bool = False

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_json().items() if name != "exhaustive"}


class DecodeGraphsModel(LockstepModel[DecodeGraphsScope]):
    contract = "decode_graphs"
    laws = LAWS
    reference_type = DecodeGraphs
    scope_type = DecodeGraphsScope
    operations = {
        "admit": {"row": int, "stamps": Ints},
        "release": {"row": int},
        "widen": {"width": Size},
        "capture": {"lanes": int, "tried": list[str]},
        "begin_capture": {"lanes": int},
        "end_capture": {},
        "replay": {"lanes": int, "rows": Ints, "stamps": Ints},
        "collect": {},
    }
    scopes = tuple(
        DecodeGraphsScope(*sizes)
        for sizes in ((1, 2, 2, 1), (2, 2, 3, 2), (3, 3, 4, 2), (4, 2, 5, 3), (3, 2, 9, 1), (2, 4, 5, 1), (4, 3, 7, 2))
    )
    small_scopes = (
        DecodeGraphsScope(1, 2, 1, 1, exhaustive=True),
        DecodeGraphsScope(2, 1, 2, 1, exhaustive=True),
        DecodeGraphsScope(1, 2, 2, 2, exhaustive=True),
    )
    goals = (
        Goal("admitted", "a row is filled"),
        Goal("no_room", "an admission is refused for lack of blocks"),
        Goal("row_taken", "an admission is refused because the row is taken"),
        Goal("released", "a row gives back blocks that a replay took"),
        Goal("replayed", "a graph is replayed"),
        Goal("took_block", "a replay takes a block"),
        Goal("took_several", "several lanes of a replay take a block"),
        Goal("refused_lane", "a lane finds no block"),
        Goal("some_refused", "one lane gets the last block and another is refused"),
        Goal("full_lane", "a lane finds its table full"),
        Goal("padded", "a replay has padded lanes"),
        Goal("only_padding", "a replay has nothing but padded lanes"),
        Goal("shuffled", "the rows of a replay are not in order"),
        Goal("other_tables", "a graph is replayed after its tables changed since the capture"),
        Goal("recaptured", "a size is captured again after the table moved"),
        Goal("stale", "a graph that was captured before the table moved is replayed"),
        Goal("not_captured", "a size is replayed that was never captured"),
        Goal("in_capture", "a call is tried during a capture"),
        Goal("admitted_before_collect", "a row is filled between a replay that took a block and its collect"),
        Goal("released_before_collect", "a row is released between its replay and the collect"),
        Goal("malformed", "an argument is out of range or repeated"),
    )

    def __init__(self, scope: DecodeGraphsScope, factory: Any) -> None:
        super().__init__(scope, factory)
        self._captured_with: dict[int, list[list[int]]] = {}
        self._since_replay: tuple[set[int], bool] = (set(), False)
        self._took: set[int] = set()

    def factory_arguments(self, scope: DecodeGraphsScope) -> dict[str, Any]:
        return {name: value for name, value in scope.to_json().items() if name != "exhaustive"}

    @command(4)
    def admit(self, pick: Pick) -> Op:
        """A sequence moves into a row."""
        row = pick(self._rows(live=False))
        most = len(self.view.tables[row]) * self.scope.block_size
        lengths = (1, most) if self.scope.exhaustive else tuple(range(1, most + 1))
        return Op("admit", row=row, stamps=self._stamps(pick, pick(lengths)))

    @command(2)
    def release(self, pick: Pick) -> Op:
        """A sequence leaves its row."""
        return Op("release", row=pick(self._rows(live=True)))

    @command(1)
    def widen(self, pick: Pick) -> Op:
        """The table moves, wider or narrower."""
        return Op("widen", width=pick(range(1, (2 if self.scope.exhaustive else WIDEST) + 1)))

    @command(3)
    def capture(self, pick: Pick) -> Op:
        """A batch size is captured, and perhaps something is tried meanwhile."""
        return Op("capture", lanes=pick(range(1, self.scope.rows + 1)), tried=pick(([], [], list(CALLS))))

    @command(8)
    def replay(self, pick: Pick) -> Op:
        """A captured graph runs for some rows."""
        lanes = pick([*sorted(self.held.fresh), *sorted(self.held.stale)[:1]])
        live = self._rows(live=True)
        rows = sample(pick, live, pick(range(min(len(live), lanes), -1, -1)))
        return Op("replay", lanes=lanes, rows=rows, stamps=self._stamps(pick, len(rows)))

    @command(4)
    def collect(self, pick: Pick) -> Op:
        """Reads the results of the last replay."""
        return Op("collect")

    @command(1)
    def malformed(self, pick: Pick) -> Op:
        """A row is out of range, taken, empty or repeated; a size was not captured; a sequence is too long."""
        rows, width = self.scope.rows, len(self.view.tables[0])
        taken, empty = self._rows(live=True)[:1], self._rows(live=False)[:1]
        lanes = sorted(self.held.fresh)[-1:]
        return pick(
            [
                Op("admit", row=rows, stamps=[1]),
                Op("admit", row=0, stamps=[]),
                Op("admit", row=0, stamps=[1] * (width * self.scope.block_size + 1)),
                Op("release", row=-1),
                Op("widen", width=0),
                Op("begin_capture", lanes=rows + 1),
                Op("end_capture"),
                Op("replay", lanes=rows + 1, rows=[], stamps=[]),
                *(Op("admit", row=row, stamps=[1]) for row in taken),
                *(Op("release", row=row) for row in empty),
                *(Op("replay", lanes=n, rows=[row], stamps=[1]) for n in lanes for row in empty),
                *(Op("replay", lanes=n, rows=[row] * 2, stamps=[1, 2]) for n in lanes for row in taken),
                *(Op("replay", lanes=n, rows=[row], stamps=[1]) for n in range(1, rows + 1) for row in taken),
            ]
        )

    def perform(self, system: Any, op: Op) -> Any:
        if op.name == "capture":
            return self._capture(system, op.args["lanes"], op.args["tried"])
        answer = getattr(system, op.name)(**op.args)
        return (
            None
            if answer is None
            else [Lane(whole(status), wholes_at_once(context)) for status, context in bounded(answer)]
        )

    def _capture(self, system: Any, lanes: int, tried: list[str]) -> list[str]:
        """Captures, and returns the outcome of each call tried meanwhile. The device cannot be read during that."""
        system.begin_capture(lanes)
        calls = {"admit": (0, [1]), "release": (0,), "widen": (WIDEST,), "begin_capture": (1,), "replay": (1, [], [])}
        answers = []
        try:
            for call in tried:
                try:
                    getattr(system, call)(*calls[call])
                    answers.append("done")
                except ContractError as error:
                    answers.append(type(error).__name__)
        finally:
            system.end_capture()
        return answers

    def observe(self, system: Any) -> View:
        return View(
            [wholes_at_once(blocks) for blocks in bounded(system.tables())],
            wholes_at_once(system.lengths()),
            wholes_at_once(system.free_blocks()),
            whole(system.num_free),
            wholes_at_once(system.memory()),
        )

    def draw(self, view: View) -> Picture:
        held: Held = self.held
        size = held.block_size
        owners: dict[int, list[str]] = {}
        for row, table in enumerate(view.tables):
            for block in table:
                owners.setdefault(block, []).append(f"row {row}")
        cells = {}
        for slot, stamp in enumerate(view.memory):
            holders = tuple(owners.get(slot // size, ()))
            state = HELD if holders else FREE if slot // size in view.free else UNKNOWN
            cells[slot] = Cell(state, holders, len(holders), f"stamp {stamp}")
        tables = tuple((f"row {row}", str(view.lengths[row]), numbers(table)) for row, table in enumerate(view.tables))
        graphs = (
            ("captured since the table moved", numbers(sorted(held.fresh))),
            ("captured before", numbers(sorted(held.stale))),
            ("free, bottom first", numbers(view.free)),
            ("num_free", str(view.num_free)),
        )
        return Picture(
            "slot",
            cells,
            (Table("block tables", ("row", "length", "blocks"), tables), Table("graphs", ("what", "value"), graphs)),
            size,
        )

    def nothing_held(self) -> Held:
        return Held(self.scope.block_size, frozenset(), frozenset(), ())

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        match op.name:
            case "capture":
                return held._replace(fresh=held.fresh | {op.args["lanes"]}, stale=held.stale - {op.args["lanes"]})
            case "widen":
                return held._replace(fresh=frozenset(), stale=held.stale | held.fresh)
            case "replay":
                _, lanes = decoded(self.view, op.args["rows"], op.args["stamps"], held.block_size)
                return held._replace(lanes=lanes)
        return held

    def notice(self, step: Step[View, Held]) -> None:
        met, op = self.goals_met, step.op
        match step.outcome:
            case Refused("OutOfSlots"):
                met["no_room"] += 1
            case Refused("NotFree"):
                met["row_taken"] += 1
            case Refused("StaleGraph"):
                met["stale"] += 1
            case Refused("NotCaptured"):
                met["not_captured"] += 1
            case Refused():
                met["malformed"] += 1
            case _ if op.name == "replay":
                self._notice_replay(step)
            case _:
                self._notice_other(step)

    def _notice_replay(self, step: Step[View, Held]) -> None:
        met, args = self.goals_met, step.op.args
        rows, lanes = args["rows"], args["lanes"]
        took = len(step.before.free) - len(step.after.free)
        statuses = [status for status, _ in step.held.lanes]
        met["replayed"] += bool(rows)
        met["took_block"] += took > 0
        met["took_several"] += took > 1
        met["refused_lane"] += REFUSED in statuses
        met["some_refused"] += REFUSED in statuses and took > 0
        met["full_lane"] += FULL in statuses
        met["padded"] += 0 < len(rows) < lanes
        met["only_padding"] += not rows
        met["shuffled"] += rows != sorted(rows)
        met["other_tables"] += bool(rows) and self._captured_with.get(lanes, step.before.tables) != step.before.tables
        self._since_replay = (set(rows), took > 0)
        self._took |= {row for row in rows if step.before.tables[row] != step.after.tables[row]}

    def _notice_other(self, step: Step[View, Held]) -> None:
        met, args = self.goals_met, step.op.args
        rows, took = self._since_replay
        match step.op.name:
            case "admit":
                met["admitted"] += 1
                met["admitted_before_collect"] += took
                self._took.discard(args["row"])
            case "release":
                met["released"] += args["row"] in self._took
                met["released_before_collect"] += args["row"] in rows
            case "collect":
                self._since_replay = (set(), False)
            case "capture":
                met["in_capture"] += bool(args["tried"])
                met["recaptured"] += args["lanes"] in step.held_before.stale
                self._captured_with[args["lanes"]] = step.before.tables

    def fingerprint(self) -> Any:
        view = self.view
        return (*map(tuple, view.tables), tuple(view.lengths), tuple(view.free), tuple(view.memory), self.held)

    @classmethod
    def simpler_scopes(cls, scope: DecodeGraphsScope) -> Iterable[Scope]:
        for name in ("rows", "blocks", "block_size", "width"):
            for size in range(1, getattr(scope, name)):
                changed: dict[str, Any] = {name: size}
                yield replace(scope, **changed)

    def _rows(self, live: bool) -> list[int]:
        return [row for row, length in enumerate(self.view.lengths) if bool(length) == live]

    def _stamps(self, pick: Pick, n: int) -> list[int]:
        return [1 if self.scope.exhaustive else pick(STAMPS) for _ in range(n)]
