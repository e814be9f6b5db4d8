"""Faults of decode_graphs: graphs that keep values or addresses, padding that writes, a stack that loses count."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.decode_graphs.contract import NO_BLOCK, StaleGraph
from kvlockstep.reference.decode_graphs.graphs import DecodeGraphs, Graph
from kvlockstep.reference.errors import NotHeld, OutOfSlots


class TableByValue(DecodeGraphs):
    """Attention in a graph reads the table as it stood when the graph was captured."""

    def end_capture(self) -> None:
        super().end_capture()
        self._frozen = self.tables()

    def _context(self, graph: Graph, row: int) -> list[int]:
        now, known = graph.table[row], self._frozen[row]
        blocks = [k if k != NO_BLOCK else b for k, b in zip(known, now, strict=True)]
        return super()._context(graph._replace(table=[*graph.table[:row], blocks]), row)


class LengthsByValue(DecodeGraphs):
    """A graph writes at the lengths that the rows had when it was captured, if they are still that long."""

    def end_capture(self) -> None:
        super().end_capture()
        self._frozen = list(self._lengths)

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        status = super()._grow(graph, row, stamp)
        known, position = self._frozen[row], graph.lengths[row] - 1
        if status == 1 and 0 < known < position:
            last, old = (self._slot(graph.table[row][at // self._size], at) for at in (position, known))
            self._memory[old], self._memory[last] = stamp, 0
        return status


class StalePointer(DecodeGraphs):
    """A graph that was captured before the table moved runs on the memory where it was."""

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        try:
            super().replay(lanes, rows, stamps)
        except StaleGraph:
            self._run(self._graphs[lanes], rows, stamps)


class NeverRecaptures(DecodeGraphs):
    """A size that was captured once is not captured again."""

    def end_capture(self) -> None:
        old = self._graphs.get(self._capturing or 0)
        super().end_capture()
        if old is not None:
            self._graphs[old.lanes] = old


class StaleForEver(DecodeGraphs):
    """Once the table has moved, no new capture helps."""

    def widen(self, width: int) -> None:
        super().widen(width)
        self._moved = True

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        if getattr(self, "_moved", False) and lanes in self._graphs and self._capturing is None and not rows:
            raise StaleGraph("the table has moved")
        super().replay(lanes, rows, stamps)


class PaddingRepeats(DecodeGraphs):
    """Padded lanes still hold the rows of the replay before, and write there once more."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        before = getattr(self, "_before", [])
        super()._run(graph, rows, stamps)
        self._before = list(rows)
        for row in before[len(rows) : graph.lanes]:
            if self._lengths[row] and row not in rows:
                self._grow(graph, row, 1)


class PaddingWraps(DecodeGraphs):
    """Padded lanes have slot -1, which is the last one."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        if len(rows) < graph.lanes and self._memory:
            self._memory[-1] = 0


class PaddingTakesBlocks(DecodeGraphs):
    """A padded lane takes a block as if it were a row."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        if len(rows) < graph.lanes and self._free:
            self._pop(1)


class MirrorEarly(DecodeGraphs):
    """The host counts a block for each lane that needs one, before the device has said whether there was one."""

    _early = 0

    @property
    def num_free(self) -> int:
        return super().num_free - self._early

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        asked = sum(
            self._lengths[row] % self._size == 0 and self._lengths[row] < self._width * self._size for row in rows
        )
        before = len(self._free)
        super()._run(graph, rows, stamps)
        self._early = asked - (before - len(self._free))

    def collect(self) -> list:  # type: ignore[type-arg]
        self._early = 0
        return super().collect()


class MirrorLate(DecodeGraphs):
    """Until the answers are read, the host hands out blocks that the device has taken."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        before = list(self._free)
        super()._run(graph, rows, stamps)
        self._taken = before[len(self._free) :]

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        taken, self._taken = getattr(self, "_taken", []), []
        free = list(self._free)
        super().admit(row, stamps)
        if taken and len(self._free) < len(free):
            first = self._table[row][0]
            self._table[row][0] = taken[-1]
            self._free.append(first)

    def collect(self) -> list:  # type: ignore[type-arg]
        self._taken = []
        return super().collect()


class PopsBelowTheStack(DecodeGraphs):
    """The pop in a graph looks at no bound: below the bottom it reads whatever lies there."""

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        if not self._free and self._memory and graph.lengths[row] % self._size == 0:
            self._free.append(0)
        return super()._grow(graph, row, stamp)


class OneBlockForTwo(DecodeGraphs):
    """Lanes that take a block at once get the same one: the top is read before it moves."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        self._popped = 0
        super()._run(graph, rows, stamps)
        self._popped = -1

    def _pop(self, n: int) -> list[int]:
        taken = super()._pop(n)
        if getattr(self, "_popped", -1) >= 0:
            self._popped += 1
            if self._popped == 1:
                self._first = taken
            return self._first
        return taken


class RefusalLosesBlocks(DecodeGraphs):
    """The replay that finds no block for a lane forgets those that it took for others."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        before = list(self._free)
        super()._run(graph, rows, stamps)
        if before and any(lane.status == 2 for lane in self._lanes):
            self._free = before


class RefusedRowGrows(DecodeGraphs):
    """A row that gets no block counts its token all the same."""

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        status = super()._grow(graph, row, stamp)
        if status == 2 and graph.lengths[row] > 1:
            graph.lengths[row] -= 1
        return status


class RefusedSaysDone(DecodeGraphs):
    """The status of a lane that got no block is not written, so that it reads as done."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        self._lanes = [lane._replace(status=1 if lane.status == 2 else lane.status) for lane in self._lanes]


class FullTableWraps(DecodeGraphs):
    """A row whose table is full writes into its last slot again."""

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        status = super()._grow(graph, row, stamp)
        if status == 3:
            self._memory[self._slot(graph.table[row][-1], self._size - 1)] = stamp
        return status


class ReleasesTheAdmitted(DecodeGraphs):
    """A release gives back what the host once put into the table, not what a graph added."""

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        super().admit(row, stamps)
        self._known = getattr(self, "_known", {})
        self._known[row] = [block for block in self._table[row] if block != NO_BLOCK]

    def release(self, row: int) -> None:
        known = set(getattr(self, "_known", {}).get(row, []))
        free = list(self._free)
        super().release(row)
        self._free = [block for block in self._free if block in free or block in known]


class CapturingAdmits(DecodeGraphs):
    """An admission during a capture is carried out."""

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        capturing, self._capturing = self._capturing, None
        try:
            super().admit(row, stamps)
        finally:
            self._capturing = capturing


class CaptureRuns(DecodeGraphs):
    """What is captured also runs."""

    def end_capture(self) -> None:
        lanes = self._capturing
        super().end_capture()
        if lanes and self._lengths[0]:
            self._run(self._graphs[lanes], [0], [1])


class AnswersByReference(DecodeGraphs):
    """collect answers what stands in the slots now, not what the replay read."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        self._ran = graph, list(rows)

    def collect(self) -> list:  # type: ignore[type-arg]
        lanes = super().collect()
        if not lanes:
            return lanes
        graph, rows = self._ran
        return [lane._replace(context=self._context(graph, row)) for lane, row in zip(lanes, rows, strict=True)]


class KeepsOneBack(DecodeGraphs):
    """The last free block is never given to a row."""

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        if self._capturing is None and len(stamps) > 0 and self._free and row in range(len(self._lengths)):
            room = len(stamps) <= self._width * self._size and not self._lengths[row]
            if room and -(-len(stamps) // self._size) == len(self._free):
                raise OutOfSlots("one block is kept")
        super().admit(row, stamps)


class RowBeforeCapture(DecodeGraphs):
    """release looks at the row before it looks for a capture."""

    def release(self, row: int) -> None:
        self._check_row("release", row)
        if not self._lengths[row]:
            raise NotHeld(f"release: row {row} is empty")
        super().release(row)


class UnknownGraph(DecodeGraphs):
    """The graph of a size that was never captured is missing from the dict."""

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        if self._capturing is None and not rows:
            self._graphs[lanes]
        super().replay(lanes, rows, stamps)


FAULTS = faults_of(
    "decode_graphs",
    ("graph-table-by-value", TableByValue, "a table captured by value", ("Megatron-LM#6852",), "content_equality"),
    ("graph-lengths-by-value", LengthsByValue, "lengths captured by value", ("mutant",), "graph_contract"),
    ("graph-stale-pointer", StalePointer, "the table's old address", ("imp#1648",), "no_stale_graph"),
    ("graph-no-recapture", NeverRecaptures, "an old graph is kept", ("Megatron-LM#6852",), "no_stale_graph"),
    ("graph-stale-for-ever", StaleForEver, "a new graph is taken for stale", ("mutant",), "no_stale_graph"),
    ("graph-padding-repeats", PaddingRepeats, "padding keeps old rows", ("sglang#26292",), "padding_isolation"),
    ("graph-padding-wraps", PaddingWraps, "padding wraps to the last slot", ("vllm#43810",), "graph_contract"),
    ("graph-padding-takes", PaddingTakesBlocks, "padding takes a block", ("TensorRT-LLM#13278",), "conservation"),
    ("graph-mirror-early", MirrorEarly, "the host counts before the device", ("seed 003",), "accounting"),
    ("graph-mirror-late", MirrorLate, "the host counts too late", ("seed 003",), "no_aliasing"),
    ("graph-pop-unbounded", PopsBelowTheStack, "a pop without bounds", ("seed 003",), "no_aliasing"),
    ("graph-one-for-two", OneBlockForTwo, "a top that is not moved at once", ("vllm#42571",), "no_aliasing"),
    ("graph-refusal-loses", RefusalLosesBlocks, "an exhausted stack loses count", ("mutant",), "no_aliasing"),
    ("graph-refused-grows", RefusedRowGrows, "a refused row is changed", ("Megatron-LM#6091",), "graph_contract"),
    ("graph-refused-done", RefusedSaysDone, "a status that is not written", ("mutant",), "content_equality"),
    ("graph-full-wraps", FullTableWraps, "a full table wraps", ("vllm#43810",), "padding_isolation"),
    ("graph-release-known", ReleasesTheAdmitted, "blocks the graph took leak", ("kvcached#401",), "conservation"),
    ("graph-admit-captures", CapturingAdmits, "allocation inside a capture", ("seed 003",), "capture_refuses"),
    ("graph-capture-runs", CaptureRuns, "a capture runs", ("mutant",), "atomicity"),
    ("graph-late-answers", AnswersByReference, "answers are read too late", ("sglang#30093",), "content_equality"),
    ("graph-keeps-one", KeepsOneBack, "the last block is refused", ("llama.cpp#10873",), "admission_honesty"),
    ("graph-row-first", RowBeforeCapture, "checks in another order", ("seed 003",), "capture_refuses"),
    ("graph-key-error", UnknownGraph, "an error of the dict", ("mutant",), "error_contract"),
)
