"""Faults of decode_graphs: stale values and addresses in graphs, writes of padded lanes, lost blocks."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.decode_graphs.contract import NO_BLOCK, StaleGraph
from kvlockstep.reference.decode_graphs.graphs import DecodeGraphs, Graph
from kvlockstep.reference.errors import NotHeld, OutOfSlots


@fault("graph-table-by-value", law="content_equality", seen=("Megatron-LM#6852",))
class TableByValue(DecodeGraphs):
    """Attention in a graph reads the block table as it was when the graph was captured."""

    def end_capture(self) -> None:
        super().end_capture()
        self._frozen = self.tables()

    def _context(self, graph: Graph, row: int) -> list[int]:
        now, known = graph.table[row], self._frozen[row]
        blocks = [k if k != NO_BLOCK else b for k, b in zip(known, now, strict=True)]
        return super()._context(graph._replace(table=[*graph.table[:row], blocks]), row)


@fault("graph-lengths-by-value", law="graph_contract", seen=("mutant",))
class LengthsByValue(DecodeGraphs):
    """A graph writes at the row lengths of its capture, not at the current ones."""

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


@fault("graph-stale-pointer", law="no_stale_graph", seen=("imp#1648",))
class StalePointer(DecodeGraphs):
    """A graph captured before the table moved still runs on the old memory."""

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        try:
            super().replay(lanes, rows, stamps)
        except StaleGraph:
            self._run(self._graphs[lanes], rows, stamps)


@fault("graph-no-recapture", law="no_stale_graph", seen=("Megatron-LM#6852",))
class NeverRecaptures(DecodeGraphs):
    """Capturing a size again keeps the old graph."""

    def end_capture(self) -> None:
        old = self._graphs.get(self._capturing or 0)
        super().end_capture()
        if old is not None:
            self._graphs[old.lanes] = old


@fault("graph-stale-for-ever", law="no_stale_graph", seen=("mutant",))
class StaleForEver(DecodeGraphs):
    """After the table has moved, replays are refused as stale even after a new capture."""

    def widen(self, width: int) -> None:
        super().widen(width)
        self._moved = True

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        if getattr(self, "_moved", False) and lanes in self._graphs and self._capturing is None and not rows:
            raise StaleGraph("the table has moved")
        super().replay(lanes, rows, stamps)


@fault("graph-padding-repeats", law="padding_isolation", seen=("sglang#26292",))
class PaddingRepeats(DecodeGraphs):
    """Padded lanes keep the rows of the previous replay and write there again."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        before = getattr(self, "_before", [])
        super()._run(graph, rows, stamps)
        self._before = list(rows)
        for row in before[len(rows) : graph.lanes]:
            if self._lengths[row] and row not in rows:
                self._grow(graph, row, 1)


@fault("graph-padding-wraps", law="graph_contract", seen=("vllm#43810",))
class PaddingWraps(DecodeGraphs):
    """Padded lanes write to slot -1, which is the last slot."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        if len(rows) < graph.lanes and self._memory:
            self._memory[-1] = 0


@fault("graph-padding-takes", law="conservation", seen=("TensorRT-LLM#13278",))
class PaddingTakesBlocks(DecodeGraphs):
    """Padded lanes take blocks as if they were rows."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        if len(rows) < graph.lanes and self._free:
            self._pop(1)


@fault("graph-mirror-early", law="accounting", seen=("seed 003",))
class MirrorEarly(DecodeGraphs):
    """The host counts the blocks that lanes need before the device says whether they got one."""

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


@fault("graph-mirror-late", law="no_aliasing", seen=("seed 003",))
class MirrorLate(DecodeGraphs):
    """The host hands out blocks that the device took, until the results are collected."""

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


@fault("graph-pop-unbounded", law="no_aliasing", seen=("seed 003",))
class PopsBelowTheStack(DecodeGraphs):
    """The pop in a graph checks no bound and reads below the bottom of the stack."""

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        if not self._free and self._memory and graph.lengths[row] % self._size == 0:
            self._free.append(0)
        return super()._grow(graph, row, stamp)


@fault("graph-one-for-two", law="no_aliasing", seen=("vllm#42571",))
class OneBlockForTwo(DecodeGraphs):
    """Lanes that take a block in the same step get the same block."""

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


@fault("graph-refusal-loses", law="no_aliasing", seen=("mutant",))
class RefusalLosesBlocks(DecodeGraphs):
    """A replay that runs out of blocks does not record the blocks that other lanes took."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        before = list(self._free)
        super()._run(graph, rows, stamps)
        if before and any(lane.status == 2 for lane in self._lanes):
            self._free = before


@fault("graph-refused-grows", law="graph_contract", seen=("Megatron-LM#6091",))
class RefusedRowGrows(DecodeGraphs):
    """A row that gets no block still counts its token."""

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        status = super()._grow(graph, row, stamp)
        if status == 2 and graph.lengths[row] > 1:
            graph.lengths[row] -= 1
        return status


@fault("graph-refused-done", law="content_equality", seen=("mutant",))
class RefusedSaysDone(DecodeGraphs):
    """A lane that gets no block does not write its status, so it reads as done."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        self._lanes = [lane._replace(status=1 if lane.status == 2 else lane.status) for lane in self._lanes]


@fault("graph-full-wraps", law="padding_isolation", seen=("vllm#43810",))
class FullTableWraps(DecodeGraphs):
    """A row whose table is full writes into its last slot again."""

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        status = super()._grow(graph, row, stamp)
        if status == 3:
            self._memory[self._slot(graph.table[row][-1], self._size - 1)] = stamp
        return status


@fault("graph-release-known", law="conservation", seen=("kvcached#401",))
class ReleasesTheAdmitted(DecodeGraphs):
    """Releasing a row gives back the blocks of its admission but not those that graphs added."""

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        super().admit(row, stamps)
        self._known = getattr(self, "_known", {})
        self._known[row] = [block for block in self._table[row] if block != NO_BLOCK]

    def release(self, row: int) -> None:
        known = set(getattr(self, "_known", {}).get(row, []))
        free = list(self._free)
        super().release(row)
        self._free = [block for block in self._free if block in free or block in known]


@fault("graph-admit-captures", law="capture_refuses", seen=("seed 003",))
class CapturingAdmits(DecodeGraphs):
    """An admission during a capture is accepted instead of refused."""

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        capturing, self._capturing = self._capturing, None
        try:
            super().admit(row, stamps)
        finally:
            self._capturing = capturing


@fault("graph-capture-runs", law="atomicity", seen=("mutant",))
class CaptureRuns(DecodeGraphs):
    """Capturing a graph also runs it."""

    def end_capture(self) -> None:
        lanes = self._capturing
        super().end_capture()
        if lanes and self._lengths[0]:
            self._run(self._graphs[lanes], [0], [1])


@fault("graph-late-answers", law="content_equality", seen=("sglang#30093",))
class AnswersByReference(DecodeGraphs):
    """collect returns the current content of the slots, not what the replay read."""

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        super()._run(graph, rows, stamps)
        self._ran = graph, list(rows)

    def collect(self) -> list:  # type: ignore[type-arg]
        lanes = super().collect()
        if not lanes:
            return lanes
        graph, rows = self._ran
        return [lane._replace(context=self._context(graph, row)) for lane, row in zip(lanes, rows, strict=True)]


@fault("graph-keeps-one", law="admission_honesty", seen=("llama.cpp#10873",))
class KeepsOneBack(DecodeGraphs):
    """The last free block is never given to a row."""

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        if self._capturing is None and len(stamps) > 0 and self._free and row in range(len(self._lengths)):
            room = len(stamps) <= self._width * self._size and not self._lengths[row]
            if room and -(-len(stamps) // self._size) == len(self._free):
                raise OutOfSlots("one block is kept")
        super().admit(row, stamps)


@fault("graph-row-first", law="capture_refuses", seen=("seed 003",))
class RowBeforeCapture(DecodeGraphs):
    """During a capture, release reports an unknown row instead of the capture."""

    def release(self, row: int) -> None:
        self._check_row("release", row)
        if not self._lengths[row]:
            raise NotHeld(f"release: row {row} is empty")
        super().release(row)


@fault("graph-key-error", law="error_contract", seen=("mutant",))
class UnknownGraph(DecodeGraphs):
    """Replaying a size that was never captured raises KeyError."""

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        if self._capturing is None and not rows:
            self._graphs[lanes]
        super().replay(lanes, rows, stamps)
