"""Shrinking: what it depends on, and that a call that is only slow does not stand for one that hangs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from driving import random_walk

from kvlockstep.campaign.plan import plan_of
from kvlockstep.campaign.tasks import SHRINK, Task, do_task
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, parse_trace, trace_text
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import run_ops
from kvlockstep.drivers.shrink import HANG_SECONDS, ShrinkBudget, shrink
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.registry import model_of
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.shrinking import shrink_failure
from kvlockstep.targets import Target, resolve

FAULT = "slot_prefix_cache", "fault:prefix-evicts-interior"
QUICK = replace(profile_of("quick"), step_seconds=2.0)
DEEP = QUICK


class SlowWhenFull(SlotPool):
    """The first slot takes longer than shrinking waits, the second longer than a check does."""

    def alloc(self):
        slot = super().alloc()
        time.sleep({0: 1.5 * HANG_SECONDS, 1: 1.5 * QUICK.step_seconds}.get(slot, 0.0))
        return slot


SLOW = Target("slot_pool", "slow", SlowWhenFull)
HANG = Trace("slot_pool", model_of("slot_pool").scope_type(2), (Op("alloc"), Op("alloc")), law="termination")


def in_a_worker(lost):
    """Shrinks as a worker of a campaign does, which has been lost over it so often."""
    plan = plan_of(SLOW, QUICK, 0, "random")
    return do_task(SlowWhenFull, plan, Task(SHRINK, 0, HANG, lost=lost), Watchdog(plan.step_seconds), print)


@pytest.mark.parametrize(
    "shrunk",
    [
        lambda: shrink_failure(SLOW, HANG, QUICK),
        lambda: shrink_failure(SLOW, HANG, DEEP),
        lambda: in_a_worker(()),
        lambda: in_a_worker(("it hung", "it hung")),
    ],
    ids=["check", "check in children", "fuzz", "fuzz in children"],
)
def test_a_call_that_is_only_slow_is_not_what_a_hang_becomes(shrunk):
    short = shrunk()
    assert [op.name for op in short.ops] == ["alloc", "alloc"]
    assert not short.flaky


def test_a_hang_that_does_not_repeat_is_flaky():
    short = shrink_failure(replace(SLOW, factory=SlotPool), HANG, QUICK)
    assert short.ops == HANG.ops
    assert short.flaky


def test_shrinking_by_steps_does_not_depend_on_time(monkeypatch):
    target, model_type = resolve(*FAULT), model_of(FAULT[0])
    with Watchdog(5.0).watching() as watchdog:
        failure = random_walk(model_type, target.factory, seed=0, watchdog=watchdog, steps=100_000).failure
        done = []
        for _ in range(2):
            done.append(shrink(model_type, target.factory, failure, watchdog, ShrinkBudget(500)))
            monkeypatch.setattr("kvlockstep.drivers.shrink.time.perf_counter", lambda: float("inf"))
        assert done[0] == done[1]
        assert len(done[0].ops) < len(failure.ops)
        longer = shrink(model_type, target.factory, failure, watchdog, ShrinkBudget(5))
    assert len(longer.ops) > len(done[0].ops)


def test_who_wants_no_simple_trace_gets_a_short_one_for_less_work():
    target, model_type = resolve(*FAULT), model_of(FAULT[0])
    plain, simple = ShrinkBudget(enough=6, simplify=False), ShrinkBudget(enough=6)
    with Watchdog(5.0).watching() as watchdog:
        failure = random_walk(model_type, target.factory, seed=0, watchdog=watchdog, steps=100_000).failure
        short = shrink(model_type, target.factory, failure, watchdog, plain)
        shrink(model_type, target.factory, failure, watchdog, simple)
    assert len(short.ops) <= 6 < len(failure.ops)
    assert plain.played < simple.played


STEP = Op("forward", accept=None, abort=[], reverse=None)
NO_COPY = "kv_manager", "fault:kv-fork-no-copy"
PARENT = Op("admit", request="parent", tokens=[1], extra_key=None, n=1)
FORK = Op("fork", request="parent", child="child")
BOTH_DECODE = (
    Op("decode", request="parent", token=1, drafts=[1] * 35),
    Op("decode", request="child", token=2, drafts=[]),
)
AT_A_TIME = 4


def harmless(number):
    """Requests with prompts of their own, five operations for each and AT_A_TIME live: without its end, one is left."""
    for i in range(number + AT_A_TIME):
        if i < number:
            yield Op("admit", request=f"r{i}", tokens=[10 * i + 2, 10 * i + 3, 10 * i + 4], extra_key=None, n=3)
            yield from (STEP, Op("decode", request=f"r{i}", token=2, drafts=[]), STEP)
        if i >= AT_A_TIME:
            yield Op("finish", request=f"r{i - AT_A_TIME}")


def long_failure():
    """A thousand harmless operations in the midst of a failure, which has no room if some of the requests stay."""
    ops = (PARENT, STEP, FORK, *harmless(200), *BOTH_DECODE, STEP)
    target = resolve(*NO_COPY)
    failure = run_ops(model_of("kv_manager"), target.factory, KVScope(24, 2, 9, 40), ops, Watchdog(5.0))
    assert failure is not None
    assert len(failure.ops) == 1_006
    return target, failure


def shrunk_by_steps(target, failure, steps):
    return shrink(model_of(failure.contract), target.factory, failure, Watchdog(5.0), ShrinkBudget(steps))


class TakesUncounted(KVManager):
    """A copy is not counted if rejected drafts have left blocks behind: then there may be none for it."""

    def reserve(self, rid, n):
        request = self._live[rid]
        spare = len(request.table) - self._blocks_for(request.computed + n)
        if spare > 0 and self._refs[request.table[request.computed // self.block_size]] > 1:
            self._take(1)
        return super().reserve(rid, n)


def admission(request, tokens, key=None):
    return Op("admit", request=request, tokens=tokens, extra_key=key, n=len(tokens))


def decode(request, drafts=0):
    return Op("decode", request=request, token=1, drafts=[1] * drafts)


def shortest(make, scope, *ops):
    """What shrinking makes of operations that fail."""
    target = Target("kv_manager", "made here", make)
    failure = run_ops(model_of("kv_manager"), make, scope, ops, Watchdog(5.0))
    assert failure is not None
    return shrink_failure(target, failure, QUICK)


def test_a_full_pool_becomes_a_small_one_with_one_request():
    short = shortest(
        TakesUncounted,
        KVScope(24, 2, 9, 24),
        *(admission("r0", [0] + [1] * 18), admission("r1", [1, 0] + [1] * 10), admission("r2", [1]), STEP),
        *(decode("r1", drafts=4), admission("r3", [1] * 7), STEP),
        *(Op("fork", request="r1", child="r4"), decode("r1")),
    )
    assert [op.name for op in short.ops] == ["admit", "forward", "decode", "forward", "fork", "decode"]
    assert short.scope.blocks == 3


def test_a_prompt_and_its_chunk_become_shorter_together():
    class FailsWhenFull(KVManager):
        def finish(self, rid):
            assert self._free, "no block left"
            super().finish(rid)

    prompt = Op("admit", request="r0", tokens=[1] * 20, extra_key=None, n=1)
    ops = prompt, STEP, Op("chunk", request="r0", n=19), STEP, Op("finish", request="r0")
    short = shortest(FailsWhenFull, KVScope(10, 2, 2, 24), *ops)
    assert short.scope.blocks == 1


def test_keys_that_do_not_matter_go():
    two = [admission("r0", [0, 0], 7), STEP, admission("r1", [0, 0, 1], 7), STEP.but(abort=["r1"])]
    short = shortest(resolve("kv_manager", "fault:kv-own-hit-freed").factory, KVScope(3, 1, 2, 4), *two)
    assert {op.args["extra_key"] for op in short.ops if op.name == "admit"} == {None}


def test_keys_that_matter_become_plain():
    apart = [admission("r0", [5, 5], 7), STEP, admission("r1", [5, 5], 9), STEP]
    short = shortest(resolve("kv_manager", "fault:kv-ignores-extra-key").factory, KVScope(4, 1, 2, 4), *apart)
    assert sorted(str(op.args["extra_key"]) for op in short.ops if op.name == "admit") == ["0", "None"]


@pytest.mark.parametrize("without", ["shortcuts", "parts"])
def test_a_long_trace_becomes_short_in_few_steps_in_two_ways(without, monkeypatch):
    monkeypatch.setattr(f"kvlockstep.models.kv_manager.KVManagerModel.{without}", staticmethod(lambda *_: []))
    target, failure = long_failure()
    short = shrunk_by_steps(target, failure, 20_000)
    assert [op.name for op in short.ops] == ["admit", "forward", "fork", "decode", "decode", "forward"]
    assert not short.flaky


def test_a_page_says_whether_shrinking_came_to_its_end():
    target, failure = long_failure()
    for steps, said in (
        (100_000, "(shrunk from 1006)"),
        (6_000, "(shrunk from 1006, shrinking not finished)"),
        (0, "(not shrunk to the end)"),
    ):
        short = shrunk_by_steps(target, failure, steps)
        assert said in failure_page(short)
        assert parse_trace(trace_text(short), "a trace").unfinished == short.unfinished


def test_no_batch_becomes_too_small_for_a_block():
    """An engine that computes whole blocks could schedule nothing there, and would be blamed for it."""
    model_type = model_of("kv_scheduler")
    seen = left = set(model_type.scopes)
    while left:
        left = {simpler for scope in left for simpler in model_type.simpler_scopes(scope)} - seen
        seen = seen | left
    assert min(scope.budget - scope.block_size for scope in seen) == 0
