"""A rolling group of kv_manager: what is read and written when, what it may refuse, and where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk
from watched import watched

from kvlockstep.drivers.episode import missed_goals, run_ops
from kvlockstep.impl.variants.groups import RollsOneMore
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.reference.kv_manager.groups.contract import Group, needed, places, stored
from kvlockstep.reference.kv_manager.groups.geometries import TieredWindow
from kvlockstep.reference.kv_manager.groups.rolling import RollingManager
from kvlockstep.reference.kv_scheduler.grouped import FullAndWindow as Scheduler

ROLLING = Group("rolling", 4, reach=6)
STEP = Op("forward", accept=None, abort=[], reverse=None)


def admit(name: str, tokens: list[int], n: int = 0) -> Op:
    return Op("admit", request=name, tokens=tokens, extra_key=None, n=n or len(tokens))


def decode(name: str, *drafts: int) -> Op:
    return Op("decode", request=name, token=0, drafts=list(drafts))


def law_of(factory: Any, *ops: Op, blocks: int = 8) -> str | None:
    found = watched(run_ops, KVManagerModel, factory, KVScope(blocks, 2, 3, 16), ops)
    return found and found.law


@pytest.mark.parametrize(
    ("start", "stop", "end", "written"),
    [
        (0, 4, 4, range(4)),
        (0, 20, 20, range(15, 20)),
        (9, 10, 10, range(9, 10)),
        (9, 13, 10, range(9, 13)),
        (9, 20, 18, range(13, 20)),
    ],
)
def test_what_must_be_written_is_what_a_later_forward_may_read(start: int, stop: int, end: int, written: range) -> None:
    assert stored(ROLLING, start, stop, end) == written
    assert set(needed(ROLLING, end, stop)) - set(needed(ROLLING, start, start)) == set(written)
    assert stored(Group("window", 4, reach=6), start, stop, end) == range(start, stop)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (4, 1), (5, 2), (6, 2), (99, 2)])
def test_a_buffer_has_no_more_blocks_than_its_window(tokens: int, blocks: int) -> None:
    assert places(ROLLING, tokens) == blocks
    assert places(Group("full", 4), tokens) == -(-tokens // 4)


@pytest.mark.parametrize("make", [RollingManager, RollsOneMore])
def test_a_buffer_holds_and_goes_round(make: Any) -> None:
    outcome = walk(KVManagerModel, make, 4_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)
    assert all(outcome.reach[goal] for goal in ("rolls", "rolls_over_read", "rolls_past"))
    assert not outcome.reach["window_slides"]


class DeclaresWindow(RollingManager):
    """Says that its buffer is a window, which is read behind the writes."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self.groups = self.groups[0], Group("window", block_size, reach=self.reach)

    def slots(self, rid: str, group: int) -> list[int | None]:
        computed, stop, reach = self._computed[rid], self._stop[rid], self.reach
        if group == 0:
            return super().slots(rid, group)
        named = range(max(0, computed - reach + 1), stop)
        return [self._slot(rid, group, p % reach) if p in named else None for p in range(stop)]

    def reserve(self, rid: str, n: int) -> bool:
        kept = self.groups
        self.groups = kept[0], Group("rolling", self.block_size, reach=self.reach)
        fits = super().reserve(rid, n)
        self.groups = kept
        return fits


def test_what_a_chunk_writes_over_was_read_before() -> None:
    ops = admit("r0", [0, 1, 2, 3, 4, 5], 3), STEP, Op("chunk", request="r0", n=2), STEP
    assert law_of(RollingManager, *ops) is None
    assert law_of(DeclaresWindow, *ops) == "content_equality"


class Drafts(RollingManager):
    """Takes drafts, of which each pushes out a token that is still read if it is rejected."""

    tokens_per_decode = None


def test_a_draft_that_is_rejected_has_pushed_out_what_is_read() -> None:
    ops = admit("r0", [0, 1, 2]), STEP, decode("r0", 5, 6)
    assert law_of(Drafts, *ops, Op("forward", accept={"r0": 2}, abort=[], reverse=None)) == "coverage"


class AsksForAll(RollingManager):
    """Wants the blocks of a whole prompt, though its buffer has no more than the window."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        if -(-len(tokens) // self.block_size) * len(self.groups) > len(self._free):
            return None
        return super().admit(rid, tokens, extra_key, n)


def test_a_refusal_counts_the_blocks_of_the_buffer_and_no_more() -> None:
    assert law_of(RollingManager, admit("r0", list(range(10))), STEP, blocks=4) is None
    assert law_of(AsksForAll, admit("r0", list(range(10))), STEP, blocks=4) == "admission_honesty"


@pytest.mark.parametrize(
    ("model", "made", "said"),
    [
        (KVManagerModel, TieredWindow, "no blocks for a tier"),
        (KVSchedulerModel, Scheduler, "a group of a kv_scheduler may not be rolling"),
    ],
)
def test_where_there_is_no_rolling_group(model: Any, made: Any, said: str) -> None:
    def make(*sizes: Any) -> Any:
        target = made(*sizes)
        target.groups = tuple(g._replace(kind="rolling") if g.kind == "window" else g for g in target.groups)
        return target

    with pytest.raises(Divergence, match=said):
        model(model.scopes[0], make)
