"""The number of different states that a campaign met."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlockstep.campaign.distinct import MOST_KEPT, Distinct, state_hash


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_few_are_counted_exactly(hashes):
    assert Distinct(hashes).count == len(set(hashes))


@pytest.mark.parametrize("states", [5_000, 100_000])
def test_many_are_estimated(states):
    distinct = Distinct(state_hash((n, "r0")) for n in range(states))
    assert len(distinct.kept) <= MOST_KEPT
    assert distinct.count == pytest.approx(states, rel=0.1)


def test_the_order_does_not_matter():
    hashes = [state_hash(n) for n in range(20_000)]
    shuffled = random.Random(0).sample(hashes, len(hashes))
    there, back = Distinct(hashes[:10_000]), Distinct()
    there.add(hashes)
    for start in range(0, len(shuffled), 700):
        back.add(shuffled[start : start + 700])
    assert (there.level, there.kept) == (back.level, back.kept)


def test_hashes_are_those_of_any_process():
    state = "((1, frozenset({('r0', 1), ('r1', 2), ('r2', None)})), {'a', 'b', 'c'})"
    program = f"from kvlockstep.campaign.distinct import state_hash; print(state_hash({state}))"
    answers = {
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed},
                       capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(answers) == 1
    assert int(answers.pop()) > 0
