"""A message says what happened and no more: the moment, the access, the number, and the law that fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from places import FAULT_TRACES, ROOT
from watched import watched

from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, load_trace
from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.properties import kv_scheduler, transfers
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import agree, counted
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.groups.geometries import FullAndWindow
from kvlockstep.runs.play_trace import replay_trace
from kvlockstep.targets import resolve

FORWARD = Op("forward", accept=None, abort=[], reverse=None)


def admit(name: str, *tokens: int) -> Op:
    return Op("admit", request=name, tokens=list(tokens), extra_key=None, n=len(tokens))


def failing(factory: Callable[..., Any], *ops: Op, blocks: int = 3, size: int = 1) -> Trace:
    """The trace of what breaks a law in a forward behind these operations."""
    trace = watched(run_ops, KVManagerModel, factory, KVScope(blocks, size, 4, 40), [*ops, FORWARD])
    assert trace is not None
    return trace


def replayed(contract: str, fault: str) -> Trace:
    trace = load_trace(FAULT_TRACES / contract / f"{fault}.jsonl")
    again = replay_trace(resolve(contract, f"fault:{fault}"), trace, profile_of("quick"))
    assert again is not None
    return again


class TestTheMomentOfAMissingSlot:
    @pytest.mark.parametrize(
        ("fault", "when", "access"),
        [
            ("kv-window-long-hit", "at launch", "which r1 reads: position 0 has none"),
            ("kv-rolling-keeps-head", "at launch", "which r0 writes: position 3 has none"),
            ("kv-chunk-early", "after this step", "which the next forward of r0 reads: position 0 has none"),
        ],
    )
    def test_with_groups(self, fault: str, when: str, access: str) -> None:
        trace = replayed("kv_manager", fault)
        assert trace.law == "coverage"
        assert f" {when} for " in trace.message
        assert trace.message.endswith(access)

    def test_of_a_scheduler(self) -> None:
        said = replayed("kv_scheduler", "sched-window-slides-by-plan").message
        assert said.endswith(", which its batch reads or writes: position 1 has none")
        between = kv_scheduler.coverage(1, 2, ", which its next batch reads", "after this step")
        assert between == "has 1 slot after this step for 2 positions, which its next batch reads"

    def test_of_one_table(self) -> None:
        assert replayed("kv_manager", "kv-never-refuses").message == "2 slots at launch for 3 positions of r0"

        class FreesTheLast(KVManager):
            def commit(self, rid: str, n: int) -> None:
                super().commit(rid, n)
                self._free.append(self._live[rid].table.pop())

        trace = failing(FreesTheLast, admit("r0", 1, 2))
        assert trace.message == "1 slot after this step for 2 positions of r0, which its next forward reads"


class TestASlotThatOneRequestHasTwice:
    OPS = Op("admit", request="r0", tokens=[1, 2], extra_key=None, n=1), FORWARD, Op("chunk", request="r0", n=1)

    def test_is_named_with_both_positions(self) -> None:
        class Twice(KVManager):
            def reserve(self, rid: str, n: int) -> bool:
                done = super().reserve(rid, n)
                self._live[rid].table[1] = self._live[rid].table[0]
                return done

        trace = failing(Twice, *self.OPS)
        assert trace.message.startswith("r0 position 0 (slot 0 of block 0, also r0 position 1) holds the KV of [1, 2],")

    def test_is_named_in_its_group(self) -> None:
        class Twice(FullAndWindow):
            def slots(self, rid: str, group: int) -> list[int | None]:
                table = super().slots(rid, group)
                return table[:1] * len(table)

        trace = failing(Twice, *self.OPS, blocks=4)
        assert re.match(r"r0 position 0 \(slot (\d) of block \1, also r0 position 1\) holds the KV of", trace.message)


class TestNumbersAgree:
    def test_with_their_verbs(self) -> None:
        assert [f"{counted(n, 'slot')} {agree(n, verb)}" for n, verb in ((1, "were"), (2, "were"), (1, "have"))] == [
            "1 slot was",
            "2 slots were",
            "1 slot has",
        ]

    def test_in_messages(self) -> None:
        assert laws.free_count(1, 1, "r0", {0}, 1) == (
            "free_now=1 of avail=1, but then r0 hit block 0, which nobody held: 1 slot was cached and counted as free"
        )
        assert str(laws.conservation({0, 1}, 1, 1)).startswith("2 blocks of 1 slot have been named")
        assert transfers.quiescence([], 1) == "nothing is live or in flight, and 1 slot is in limbo"
        said = kv_scheduler.continuity(0, 1, 1, 2, False)
        assert said == "continues at position 0, but 1 is computed, and no batch has preempted it since"

    def test_none_is_left_as_a_bare_plural(self) -> None:
        """`1 blocks were`: a number that may be one stands in `counted`, and its verb in `agree`."""
        bare = re.compile(r"\{(?!counted|agree)[^{}]*\} (slot|block|token|unit|page|byte|hit|time)s\b")
        found = [
            f"{path.relative_to(ROOT)}:{number}"
            for path in sorted((ROOT / "properties").rglob("*.py"))
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if bare.search(line) or re.search(r"counted\([^()]*(\([^()]*\))?[^()]*\)\} (are|were|have)\b", line)
        ]
        assert found == []


def test_blocks_that_nobody_holds_are_released_and_may_still_leak() -> None:
    class AbortKeepsOne(KVManager):
        def abort(self, rid: str) -> None:
            self._live[rid].table.pop()
            super().abort(rid)

    abort = Op("forward", accept=None, abort=["r0"], reverse=None)
    trace = watched(run_ops, KVManagerModel, AbortKeepsOne, KVScope(3, 1, 4, 40), [admit("r0", 1, 2, 3), abort])
    assert trace.answers[-1] == "released blocks 0, 1, 2"
    assert trace.message.endswith("1 slot leaked, in block 2")
