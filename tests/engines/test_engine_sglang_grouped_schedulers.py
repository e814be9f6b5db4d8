"""SGLang's Scheduler over a window or states under kv_scheduler: what is right holds, what is planted is found."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from driving import walk

from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import missed_goals, run_ops
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.model import SchedulerScope
from kvlockstep.targets.registry import known_divergences, resolve

REASON = "sglang is not on this machine: see --engine-path"
windows = pytest.importorskip("kvlockstep.impl.engines.sglang.window_scheduler", reason=REASON, exc_type=ImportError)
states = pytest.importorskip("kvlockstep.impl.engines.sglang.state_scheduler", reason=REASON, exc_type=ImportError)
tiers = pytest.importorskip("kvlockstep.impl.engines.sglang.tiers.state_hierarchy", reason=REASON, exc_type=ImportError)


@pytest.mark.parametrize(
    "make",
    [
        windows.make,
        pytest.param(windows.make_overlap_wide, marks=pytest.mark.slow),
        states.make,
        states.make_overlap_extra,
        pytest.param(states.make_overlap_extra_mixed, marks=pytest.mark.slow),
        states.make_overlap_lazy,
        states.make_overlap_extra_window,
        pytest.param(tiers.make, marks=pytest.mark.slow),
    ],
)
def test_what_holds_meets_every_goal(make: Any) -> None:
    outcome = walk(KVSchedulerModel, make, 5_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVSchedulerModel, outcome.reach, outcome.unreachable)


@pytest.mark.parametrize(("overlap", "lazy", "slots"), [(False, False, 4), (True, False, 5), (True, True, 4)])
def test_the_pool_of_states_is_what_the_engine_asks_for(overlap: bool, lazy: bool, slots: int) -> None:
    """Three for each request, and its slots for checkpoints."""
    made = states.SGLangStateScheduler(8, 2, 8, 3, chunk=2, interval=4, overlap=overlap, lazy=lazy)
    assert made.pools[states.STATES] == 3 * slots
    assert states.make(8, 2, 8, 3).pools[states.STATES] == 3 * 3


def test_copies_one_after_the_other_are_the_same_at_once() -> None:
    """The second copy reads what the first has written; of two to one target the last one counts."""
    state = states.STATES
    assert states.in_one([(state, 1, 2)], [(state, 2, 3)]) == [(state, 1, 2), (state, 1, 3)]
    assert states.in_one([(state, 1, 2), (state, 4, 2)]) == [(state, 4, 2)]


def test_the_settings_of_states_are_gone_behind_each_call() -> None:
    """Other targets of this process run without them."""
    made = states.make_overlap_lazy(4, 2, 4, 2)
    made.add("r0", [1, 2, 3], None, 2, 0)
    made.schedule()
    mamba = states.states.context.get_exec().mamba
    assert {name: getattr(mamba, name) for name in states.states.PLAIN} == states.states.PLAIN


def test_a_state_is_overwritten_at_the_defaults_of_the_engine_too() -> None:
    """A prompt that ends one token before the first checkpoint, an answer that ends one before the second."""
    interval = 256
    ops = [Op("add", request="r0", tokens=[1, 2] * 127 + [1], extra_key=None, max_tokens=300, priority=None)]
    ops += [Op("schedule", tokens=[1])]
    for position in range(interval - 1, 2 * interval):
        last = position == 2 * interval - 2
        ops += [Op("schedule", tokens=[0 if last else 1]), Op("update")]
    again = [1, 2] * 127 + [1] * 257 + [2]
    ops += [Op("add", request="r1", tokens=again, extra_key=None, max_tokens=1, priority=None)]
    ops += [Op("schedule", tokens=[1])]
    scope = SchedulerScope(40, 64, budget=512, running=2, live=2, outputs=300, tokens=(1, 2))
    with Watchdog(30.0).watching() as watchdog:
        found = run_ops(KVSchedulerModel, states.make_default, scope, ops, watchdog)
    assert found is not None
    assert (found.law, len(found.ops)) == ("state_soundness", len(ops))
    assert f"r1 goes on at position {interval} from block" in found.message


def in_chunks() -> list[Op]:
    """One prompt of four chunks of 64 tokens."""
    ops = [Op("add", request="r0", tokens=[1] * 256, extra_key=None, max_tokens=1, priority=None)]
    schedule, update = Op("schedule", tokens=[1]), Op("update")
    return [*ops, schedule, schedule, update, schedule, update, schedule]


def in_a_row() -> list[Op]:
    """Prompts of 128 tokens, and one token each."""
    prompts = ([1 + (i >> bit & 1) for bit in range(5)] + [1] * 123 for i in range(20))
    ops = [
        Op("add", request=f"r{i}", tokens=prompt, extra_key=None, max_tokens=1, priority=None)
        for i, prompt in enumerate(prompts)
    ]
    return [*ops, Op("schedule", tokens=[1]), *[Op("schedule", tokens=[1]), Op("update")] * 12]


@pytest.mark.parametrize(
    ("ops", "running", "message"), [(in_chunks, 1, "Can not alloc mamba cache"), (in_a_row, 4, "Not enough space")]
)
def test_stores_keep_the_last_state_at_the_defaults_of_the_engine_too(ops: Any, running: int, message: str) -> None:
    """With chunks of 64 tokens and an interval of 256, whether a chunk or an admission needs a state."""
    budget = 64 if running == 1 else 512
    scope = SchedulerScope(40, 64, budget=budget, running=running, live=20, outputs=1, tokens=(1, 2))
    defaults = {"chunk": 64, "interval": 256}
    with Watchdog(30.0).watching() as watchdog:
        found = run_ops(KVSchedulerModel, partial(tiers.make_unrepaired, **defaults), scope, ops(), watchdog)
        held = run_ops(KVSchedulerModel, partial(tiers.make, **defaults), scope, ops(), watchdog)
    assert held is None
    assert found is not None
    assert found.law == "error_contract"
    assert message in found.message


@pytest.mark.parametrize(
    ("known", "repaired"),
    [
        ("sglang-state-load-refused", tiers.make_back),
        ("sglang-window-parked-under-store", resolve("kv_scheduler", "sglang-hicache-window-normal").factory),
    ],
)
def test_a_known_divergence_is_gone_where_it_is_repaired(known: str, repaired: Any) -> None:
    (entry,) = [divergence for divergence in known_divergences() if divergence.id == known]
    trace = load_trace(entry.trace)
    with Watchdog(30.0).watching() as watchdog:
        assert run_ops(KVSchedulerModel, repaired, trace.scope, trace.ops, watchdog) is None


def reaches_further(*sizes: int) -> Any:
    """Declares one position more than the engine keeps."""
    made = windows.make_overlap(*sizes)
    made.groups = (made.groups[0], made.groups[1]._replace(reach=made.groups[1].reach + 1))
    return made


def slides_too_far(*sizes: int) -> Any:
    """Windows slide a page too far."""
    made = windows.make_overlap(*sizes)
    slide = made._tree.evict_sliding_windows
    made._tree.evict_sliding_windows = lambda req, pre_len, **options: slide(req, pre_len + sizes[1], **options)
    return made


def slides_by_the_plan(*sizes: int) -> Any:
    """A window slides behind the first decode as well, by what is planned: its prompt may still be in flight."""
    made = windows.make_overlap(*sizes)
    tree = made._tree
    slide, scheduler = tree.evict_sliding_windows, made._scheduler

    def planned(req: Any, pre_len: int, **options: Any) -> None:
        slide(req, pre_len + scheduler.page_size * len(scheduler.result_queue), **options)

    tree.evict_sliding_windows = planned
    return made


def makes_no_copy(*sizes: int) -> Any:
    """The state of a chunk is not copied into the slot that the tree gets."""
    made = states.make(*sizes)
    made._rows.mamba_pool.copy_from = lambda source, target: None
    return made


def starts_from_nothing(*sizes: int) -> Any:
    """A hit is not copied into the slot of its request."""
    made = states.make_overlap_extra(*sizes)
    worker = made._scheduler.model_worker
    forward = worker.forward_batch_generation

    def without_copies(batch: Any, **options: Any) -> Any:
        result = forward(batch, **options)
        worker.copies = []
        return result

    worker.forward_batch_generation = without_copies
    return made


def never_swaps(*sizes: int) -> Any:
    """There are two slots for checkpoints, and one is used."""
    made = states.make_overlap_extra(*sizes)
    made._rows.get_mamba_ping_pong_other_idx = lambda at: at
    return made


def keeps_a_slot(*sizes: int) -> Any:
    """A request that ends without a checkpoint for the tree keeps a slot for one."""
    made = states.make_overlap_extra(*sizes)
    rows = made._rows
    free = rows.free_mamba_cache

    def keep(req: Any, mamba_ping_pong_track_buffer_to_keep: int | None = None) -> None:
        kept = 0 if mamba_ping_pong_track_buffer_to_keep is None else mamba_ping_pong_track_buffer_to_keep
        free(req, kept)

    rows.free_mamba_cache = keep
    return made


def loads_nothing(*sizes: int) -> Any:
    """What is queued to be loaded is not submitted."""
    made = tiers.make(*sizes)
    made._tree.ready_to_load_host_cache = lambda: -1
    return made


def loads_for_the_tree(*sizes: int) -> Any:
    """A state is loaded to the tree, and not to the request that goes on from it."""
    made = tiers.make(*sizes)
    copies = made._host.copies
    submit = copies.submit_host_to_device
    copies.submit_host_to_device = lambda given, *rest, **options: submit(given[:2], *rest, **options)
    return made


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (reaches_further, "accounting"),
        (slides_too_far, "coverage"),
        (slides_by_the_plan, "coverage"),
        (makes_no_copy, "state_soundness"),
        (starts_from_nothing, "state_soundness"),
        (never_swaps, "state_soundness"),
        (keeps_a_slot, "accounting"),
        (loads_nothing, "state_soundness"),
        (loads_for_the_tree, "state_soundness"),
    ],
)
def test_a_planted_fault_is_found(make: Any, law: str) -> None:
    outcome = walk(KVSchedulerModel, make, 6_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law, outcome.failure.message
