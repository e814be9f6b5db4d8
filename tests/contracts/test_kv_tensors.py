"""KV in tensors, and the stamps that stand for it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlockstep.impl.kv_manager.tensors import POISON, TORN, KVTensors
from kvlockstep.reference.kv.memory import UNWRITTEN, KVMemory, Provenance


class TestProvenance:
    @given(st.lists(st.tuples(st.none() | st.integers(0, 1), st.lists(st.integers(0, 2), min_size=1)), max_size=9))
    def test_a_stamp_stands_for_its_history_and_no_other(self, histories: list[tuple[int | None, list[int]]]) -> None:
        provenance = Provenance()
        stamps = [provenance.extend(UNWRITTEN, key, tokens)[-1] for key, tokens in histories]
        assert [provenance.history(stamp) for stamp in stamps] == [(key, tuple(tokens)) for key, tokens in histories]
        assert not {UNWRITTEN, POISON}.intersection(stamps)


class TestKVTensors:
    def test_agrees_with_plain_memory(self) -> None:
        tensors, plain, rng = KVTensors(12), KVMemory(), random.Random(1)
        for _ in range(400):
            written = {slot: rng.randrange(1, 2**40) for slot in rng.sample(range(12), rng.randrange(4))}
            pairs = list(zip(rng.sample(range(12), 3), rng.sample(range(12), 3), strict=True))
            freed = rng.sample(range(12), rng.randrange(2))
            for memory in (tensors, plain):
                memory.write(list(written), list(written.values()))
                memory.copy(pairs)
                memory.poison(freed)
            assert tensors.read(range(12)) == plain.read(range(12))

    def test_fresh_memory_reads_as_nothing_and_freed_as_poison(self) -> None:
        tensors = KVTensors(3, layers=3)
        tensors.poison([1])
        assert tensors.read([0, 1, 2]) == [0, POISON, 0]

    @pytest.mark.parametrize("kv", [0, 1])
    @pytest.mark.parametrize("layer", [0, 1, 2])
    def test_one_plane_left_out_shows(self, layer: int, kv: int) -> None:
        tensors = KVTensors(2, layers=3)
        tensors.write([0, 1], [7, 8])
        tensors.kv[1, layer, kv] = tensors.kv[0, layer, kv]
        assert tensors.read([0, 1]) == [7, TORN]

    def test_one_plane_taken_for_another_shows(self) -> None:
        tensors = KVTensors(1, layers=2)
        tensors.write([0], [7])
        tensors.kv[0] = tensors.kv[0].flip(0)
        assert tensors.read([0]) == [TORN]
        tensors.write([0], [7])
        tensors.kv[0] = tensors.kv[0].flip(1)
        assert tensors.read([0]) == [TORN]

    def test_nothing_is_not_an_error(self) -> None:
        tensors = KVTensors(1)
        tensors.write([], [])
        tensors.copy([])
        tensors.poison([])
        assert tensors.read([]) == []
