"""kvlockstep.reference.contracts has all that an adapter imports, and costs no more than that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvlockstep.reference import contracts
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.targets.signatures import types_of


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=list(CONTRACTS))
def test_every_type_of_a_contract_is_there(contract):
    wanted = {**types_of(contract), contract.protocol.__name__: contract.protocol}
    wanted |= {of.__name__: of for of in (contract.optional, contract.declared) if of is not None}
    wanted |= {type(size).__name__: type(size) for size in contract.probe.values()}
    for name, of in wanted.items():
        if of.__module__.startswith("kvlockstep."):
            assert name in contracts.__all__, f"{contract.name}: export {name} of {of.__module__}"
            assert getattr(contracts, name) is of


def test_it_imports_the_standard_library_only():
    code = (
        "import sys; before = set(sys.modules); import kvlockstep.reference.contracts; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) <= {"kvlockstep", *sys.stdlib_module_names}
