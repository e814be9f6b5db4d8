"""Small machines on symbolic values: `make symbolic`, which loads the profile kvlockstep-symbolic."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from kvlockstep.impl.faulty import FAULTS
from kvlockstep.machines import machine
from kvlockstep.models.core.model import Divergence
from kvlockstep.reference.slot_pool import SlotPool


def test_the_reference_holds():
    run_state_machine_as_test(machine("slot_pool", SlotPool))


def test_a_fault_is_found():
    with pytest.raises(Divergence, match="no_aliasing"):
        run_state_machine_as_test(machine("slot_pool", FAULTS["pool-occupy-toggles"].make))
