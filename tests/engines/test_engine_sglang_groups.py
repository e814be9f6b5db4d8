"""SGLang's windows and states under kv_manager with groups: what is planted into its own code is found."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.drivers.episode import missed_goals, not_evaluated
from kvlockstep.models.kv_manager import KVManagerModel

REASON = "sglang is not on this machine: see --engine-path"
windows = pytest.importorskip("kvlockstep.impl.engines.sglang.windows", reason=REASON, exc_type=ImportError)
states = pytest.importorskip("kvlockstep.impl.engines.sglang.states", reason=REASON, exc_type=ImportError)


@pytest.mark.parametrize(
    "make", [windows.make_window_rust, windows.make_window_wide, states.make_state_rust, states.make_state_python]
)
def test_what_holds_meets_every_goal(make: Any) -> None:
    outcome = walk(KVManagerModel, make, 4_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)
    assert not not_evaluated(KVManagerModel, outcome.evaluated, outcome.not_checked)


def reaches_further(blocks: int, block_size: int) -> Any:
    """Declares one position more than the engine keeps."""
    made = windows.make_window_python(blocks, block_size)
    made.groups = (made.groups[0], made.groups[1]._replace(reach=made.groups[1].reach + 1))
    return made


def slides_too_far(blocks: int, block_size: int) -> Any:
    """The engine lets windows slide a page too far."""
    made = windows.make_window_rust(blocks, block_size)
    slide = made._tree.evict_sliding_windows
    made._tree.evict_sliding_windows = lambda req, pre_len, **options: slide(req, pre_len + block_size, **options)
    return made


def forgets_decodes(blocks: int, block_size: int) -> Any:
    """The budget of the window does not see the decodes of the step, and nobody asks again."""
    made = windows.make_window_rust(blocks, block_size)
    made._prefill_adder = lambda due: super(windows.SGLangWindowManager, made)._prefill_adder(due)
    return made


def publishes_no_copy(blocks: int, block_size: int) -> Any:
    """The state of a chunk is not copied into the slot that the tree gets."""
    made = states.make_state_rust(blocks, block_size)
    made._rows.mamba_pool.copy_from = lambda source, target: None
    return made


def starts_from_nothing(blocks: int, block_size: int) -> Any:
    """A hit is not copied into the slot of its request."""
    made = states.make_state_python(blocks, block_size)
    mamba = made._tree.components[states.sglang.ComponentType.MAMBA]
    mamba.finalize_match_result_in_cache = lambda params, result: result
    return made


def keeps_the_match(blocks: int, block_size: int) -> Any:
    """A request that is not admitted keeps the slot that its match has taken."""
    made = states.make_state_rust(blocks, block_size)
    made._give_match_back = lambda req: None
    return made


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (reaches_further, "accounting"),
        (slides_too_far, "coverage"),
        (forgets_decodes, "error_contract"),
        (publishes_no_copy, "state_soundness"),
        (starts_from_nothing, "state_soundness"),
        (keeps_the_match, "atomicity"),
    ],
)
def test_a_planted_fault_is_found(make: Any, law: str) -> None:
    outcome = walk(KVManagerModel, make, 4_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law
