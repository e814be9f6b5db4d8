"""vLLM's hybrid schedulers beside a peer under kv_scheduler: what is right holds, what is planted is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from driving import walk
from engine_targets import replayed_or_skip

from kvlockstep.models.kv_scheduler import KVSchedulerModel

REASON = "vllm is not on this machine: see --engine-path"
hybrid = pytest.importorskip("kvlockstep.impl.engines.vllm.transfers.hybrid_peer", reason=REASON, exc_type=ImportError)

MAKES = ("make_window", "make_state_window", "make_async_state", "make_window_inside", "make_state_inside")


@pytest.mark.parametrize("make", MAKES)
def test_the_engine_holds_and_goes_through_what_a_peer_is_about(make: str) -> None:
    outcome = walk(KVSchedulerModel, getattr(hybrid, make), 4_000, seed=0)
    assert outcome.failure is None, outcome.failure
    goals = {"offered", "sent", "load", "store", "loaded_groups"}
    assert all(outcome.reach[goal] for goal in goals)
    assert bool(outcome.reach["lost"]) == ("inside" not in make)


def planted(groups: tuple[Any, ...], **methods: Any) -> Any:
    """A scheduler whose connector has other methods."""

    class Connector(hybrid.HybridPeerConnector):  # type: ignore[misc]
        pass

    for name, method in methods.items():
        setattr(Connector, name, method)

    class Scheduler(hybrid.HybridPeerScheduler):  # type: ignore[misc]
        def connect(self, config: Any) -> Any:
            connector = super().connect(config)
            connector.__class__ = Connector
            return connector

    return lambda *sizes: Scheduler(*sizes, groups=groups)


def sends_no_window(self: Any, request: Any, block_ids: Sequence[Sequence[int]]) -> Any:
    """What a request leaves in its window is not sent."""
    for key, block in hybrid.HybridPeerConnector._to_send(self, request, block_ids):
        if key[0] != 1:
            yield key, block


def loads_the_last_block(self: Any, hashes: Sequence[Any], cached: int, first: int) -> Any:
    """Of a window the last block is loaded, however far it reaches."""
    found = list(hybrid.HybridPeerConnector.to_load(self, hashes, cached, first))
    last = max((number for _, g, number in found if g == 1), default=0)
    return [one for one in found if one[1] != 1 or one[2] == last]


def forgets_the_group(self: Any, hashes: Sequence[Any], g: int, number: int) -> Any:
    """A block is known by its hash alone."""
    return 0, hybrid.HybridPeerConnector.key(self, hashes, g, number)[1]


@pytest.mark.parametrize(
    ("kind", "methods", "laws"),
    [
        ("window", {"_to_send": sends_no_window}, {"delivery"}),
        ("window", {"to_load": loads_the_last_block}, {"prefix_soundness"}),
        ("state", {"key": forgets_the_group}, {"prefix_soundness", "state_soundness", "delivery"}),
    ],
)
def test_a_planted_fault_is_found(kind: str, methods: dict[str, Any], laws: set[str]) -> None:
    groups = hybrid.WINDOW if kind == "window" else (hybrid.FULL, hybrid.STATE)
    outcome = walk(KVSchedulerModel, planted(groups, **methods), 6_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law in laws, outcome.failure.message


@pytest.mark.parametrize("when", ["again", "later"])
def test_who_loads_again_after_a_failed_load_keeps_its_place(when: str) -> None:
    """The adapter takes r0 out of the queue of those that hold something, and r1 is there when r0 comes back."""
    replayed = replayed_or_skip(f"vllm-peer-async-window-loads-{when}")
    assert replayed.failure is None
    assert replayed.judged("admission_order")


def test_who_starts_behind_another_after_a_failed_load_may_come_back_behind_it() -> None:
    """The load of r3 fails: it starts in the batch of r4 behind r4, and both are preempted."""
    replayed = replayed_or_skip("vllm-peer-async-window-starts-behind")
    assert replayed.failure is None
    assert replayed.judged("admission_order")
