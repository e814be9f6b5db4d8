"""`kvlockstep prove`: what is proved, refuted and left open is called so."""

from __future__ import annotations

import json

from kvlockstep.properties.proofs import PROOFS
from kvlockstep.proving import prove


def floor_division_suffices(tokens: int) -> None:
    """A false claim: whole blocks rounded down hold every length."""
    assert 0 <= tokens < 9
    assert tokens // 2 * 2 >= tokens


def squares_are_far_apart(n: int) -> None:
    """A true claim that no time suffices for."""
    assert n > 0
    total = 0
    for i in range(n):
        total += 2 * i + 1
    assert total == n * n


def test_every_proof_is_proved(run_cli):
    code, out, _ = run_cli("prove", "--json")
    assert code == 0, out
    result = json.loads(out)
    assert [proof["name"] for proof in result["proofs"]] == [proof.__name__ for proof in PROOFS]
    assert {proof["verdict"] for proof in result["proofs"]} == {"proved"}


def test_a_false_claim_is_refuted_with_a_counterexample():
    (proof,) = prove(10, proofs=(floor_division_suffices,))
    assert proof.verdict == "refuted"
    assert "floor_division_suffices(" in proof.text


def test_what_is_not_exhausted_is_not_called_proved():
    (proof,) = prove(1, proofs=(squares_are_far_apart,))
    assert proof.verdict == "not exhausted"


def test_unknown_proof(run_cli):
    code, _, err = run_cli("prove", "nosuch")
    assert code == 2
    assert "unknown proof 'nosuch'; known: lowest_bit_search" in err
