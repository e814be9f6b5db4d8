"""Row g: a prefix of 67 MB copied on the kv_store that the machines run on, beside torch's flat copy_."""

from __future__ import annotations

import pytest

from kvlockstep.bench.kv_store import GOALS, ROUNDS, flat_copy, in_turn, prefix_copies, torch_threads
from kvlockstep.impl.kv_store import KVStore
from kvlockstep.reference.kv_store import LAYOUTS


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", GOALS)
def test_prefix_copy(benchmark, kind, layout, threads):
    copy = prefix_copies(KVStore, layout)[kind]
    assert not copy.arrived()
    with torch_threads(threads):
        benchmark.pedantic(copy, rounds=ROUNDS, warmup_rounds=2)
        ms = in_turn({"ours": copy, "floor": flat_copy()}, ROUNDS)
    benchmark.extra_info.update(floor_ms=ms["floor"], ratio=ms["ours"] / ms["floor"], goal=GOALS[kind], threads=threads)
    assert copy.arrived()
