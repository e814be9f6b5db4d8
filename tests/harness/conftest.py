"""What several tests of the harness use."""

from __future__ import annotations

import pytest
from watched import watched

from kvlockstep.core.trace import save_trace
from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import model_of
from kvlockstep.targets import resolve


@pytest.fixture
def finding(run_cli, tmp_path):
    """The trace file of a fork that does not copy."""
    forward = Op("forward", accept=None, abort=[], reverse=None)
    ops = [
        Op("admit", request="r0", tokens=[0], extra_key=None, n=1),
        forward,
        Op("fork", request="r0", child="r1"),
        Op("decode", request="r0", token=1, drafts=[]),
        forward,
        Op("decode", request="r1", token=0, drafts=[]),
        forward,
    ]
    target, model = resolve("kv_manager", "fault:kv-fork-no-copy"), model_of("kv_manager")
    scope = model.scope_type.from_json({"blocks": 1, "block_size": 2, "live": 2, "max_tokens": 2})
    trace = watched(run_ops, model, target.factory, scope, ops)
    assert trace is not None
    return save_trace(trace.but(target=target.name), tmp_path / ".kvlockstep/failures")
