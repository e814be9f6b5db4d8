"""vLLM's hybrid manager under kv_manager with groups: what is planted into its own code is found."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.reference.kv_manager.events import BlockRemoved
from kvlockstep.reference.kv_manager.groups.contract import Group

REASON = "vllm is not on this machine: see --engine-path"
hybrid = pytest.importorskip("kvlockstep.impl.engines.vllm.hybrid", reason=REASON, exc_type=ImportError)
states = pytest.importorskip("kvlockstep.impl.engines.vllm.states", reason=REASON, exc_type=ImportError)


def reaches_further(blocks: int, block_size: int) -> Any:
    """Declares one position more than the engine keeps."""
    made = hybrid.make_window(blocks, block_size)
    made.groups = (made.groups[0], made.groups[1]._replace(reach=made.groups[1].reach + 1))
    return made


def slides_too_far(blocks: int, block_size: int) -> Any:
    """The engine's window manager skips one position too many."""
    made = hybrid.make_window(blocks, block_size)
    window = made._manager.coordinator.single_type_managers[1]
    skipped = window.get_num_skipped_tokens
    window.get_num_skipped_tokens = lambda computed: skipped(computed) + 1
    return made


def retires_the_state(blocks: int, block_size: int) -> Any:
    """The engine's state manager frees the state that the next step goes on from."""
    made = states.make_state(blocks, block_size)
    made._manager.coordinator.single_type_managers[1].get_num_skipped_tokens = lambda computed: computed + block_size
    return made


def forgets_copies(blocks: int, block_size: int) -> Any:
    """A hit that ends within a block is not copied."""
    made = states.make_state_fine(blocks, block_size)
    taken = made.copies
    made.copies = lambda: taken()[:0]
    return made


def removes_from_the_first_group(blocks: int, block_size: int) -> Any:
    """Every block that the engine evicts is announced as one of the first group."""
    made = hybrid.make_window(blocks, block_size)
    told = made.events
    made.events = lambda: [e._replace(group=0) if isinstance(e, BlockRemoved) else e for e in told()]
    return made


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (reaches_further, "coverage"),
        (slides_too_far, "coverage"),
        (retires_the_state, "state_soundness"),
        (forgets_copies, "state_soundness"),
        (removes_from_the_first_group, "event_consistency"),
    ],
)
def test_a_planted_fault_is_found(make: Any, law: str) -> None:
    outcome = walk(KVManagerModel, make, 4_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law


def test_a_group_that_is_no_attention_has_no_description() -> None:
    with pytest.raises(ValueError, match="no attention group: state"):
        hybrid.VllmHybridManager(2, 2, (Group("full", 2), Group("state", 2)))
