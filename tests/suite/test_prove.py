"""`kvlockstep prove`: what is proved, refuted and left open is called so.

CrossHair traces the interpreter, so each run has a process of its own, as on the command line.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from slow import slow

from kvlockstep.properties.proofs import PROOFS

CLAIMS = '''
import json
from kvlockstep.commands.prove import prove

def floor_division_suffices(tokens: int) -> None:
    """A false claim: whole blocks rounded down hold every length."""
    assert 0 <= tokens < 9
    assert tokens // 2 * 2 >= tokens

def odd_numbers_add_up(n: int) -> None:
    """A true claim that no time suffices for."""
    assert n > 0
    total = 0
    for i in range(n):
        total += 2 * i + 1
    assert total == n * n

print(json.dumps([vars(proof) for proof in prove(2, proofs=(floor_division_suffices, odd_numbers_add_up))]))
'''


NAMES = [proof.__name__ for proof in PROOFS]
# It takes as long as the others together.
LONGEST = "slot_pool_transitions"


@pytest.mark.parametrize("names", [[name for name in NAMES if name != LONGEST], *slow([LONGEST], [])], ids=len)
def test_every_proof_is_proved(names):
    command = [sys.executable, "-m", "kvlockstep", "prove", *names, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    proofs = json.loads(done.stdout)["proofs"]
    assert [proof["name"] for proof in proofs] == (names or NAMES)
    assert {proof["verdict"] for proof in proofs} == {"proved"}


def test_a_false_claim_is_refuted_and_an_open_one_not_called_proved(tmp_path):
    program = tmp_path / "claims.py"
    program.write_text(CLAIMS)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    refuted, still_open = json.loads(done.stdout)
    assert refuted["verdict"] == "refuted"
    assert "floor_division_suffices(" in refuted["text"]
    assert still_open["verdict"] == "not exhausted"


def test_unknown_proof(run_cli):
    code, _, err = run_cli("prove", "nosuch")
    assert code == 2
    assert "unknown proof 'nosuch'; known: lowest_bit_search" in err
