"""A factory takes the sizes that its contract's reference takes, and refuses the others as it does."""

from __future__ import annotations

import inspect
import itertools

import pytest

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.registry import MODELS
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv.memory import UNWRITTEN
from kvlockstep.targets.registry import OWN_TARGETS, load

LOCKSTEP = [contract for contract, model in MODELS.items() if issubclass(model, LockstepModel)]
OWN = [(contract, name) for contract in LOCKSTEP for name in OWN_TARGETS[contract] if name != "reference"]


MANAGERS = [
    make
    for name, path in OWN_TARGETS["kv_manager"].items()
    if "tensors" in inspect.signature(make := load(path)).parameters
]


def takes(factory, sizes):
    try:
        factory(*sizes)
    except InvalidArgument:
        return False
    return True


def sizes_around_nothing(contract):
    """The contract's parameters with every mix of -1, 0 and 1 for those that are numbers."""
    mixes = ([-1, 0, 1] if isinstance(value, int) else [value] for value in CONTRACTS[contract].probe.values())
    return list(itertools.product(*mixes))


@pytest.mark.parametrize(("contract", "name"), OWN)
def test_takes_the_sizes_that_the_reference_takes(contract, name):
    reference, own = (load(OWN_TARGETS[contract][target]) for target in ("reference", name))
    tried = {sizes: (takes(reference, sizes), takes(own, sizes)) for sizes in sizes_around_nothing(contract)}
    assert {sizes for sizes, (ours, theirs) in tried.items() if ours != theirs} == set()
    assert {taken for taken, _ in tried.values()} == {True, False}


@pytest.mark.parametrize("make", MANAGERS)
def test_a_manager_keeps_tensors_if_it_is_asked_to(make):
    assert make(4, 2).memory is None
    assert make(4, 2, tensors=True).memory.read([0]) == [UNWRITTEN]
