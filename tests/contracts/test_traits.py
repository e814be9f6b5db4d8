"""Traits are declared with their default and their text, and a contract reads everything off its declaration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.contract import Contract
from kvlockstep.reference.kv_manager.contract import KVManagerOptional, KVManagerTarget
from kvlockstep.reference.traits import both, required, smaller, trait, traits_of


@dataclass(frozen=True)
class Declared:
    pages: int = required("Pages of the pool", least=1)
    can_swap: bool = trait(False, "There is `swap()`. It swaps everything.", method="swap", common=both)
    align: int = trait(1, "Chunks end at multiples of this.", least=1, common=math.lcm)


def test_a_trait_knows_its_default_its_text_and_its_method() -> None:
    traits = traits_of(Declared)
    assert [t.name for t in traits.values() if t.required] == ["pages"]
    assert (traits["can_swap"].default, traits["can_swap"].methods) == (False, ("swap",))
    assert traits["can_swap"].summary == "There is `swap()`"
    assert traits["pages"].summary == "Pages of the pool"
    assert Declared(pages=4) == Declared(4, False, 1)
    with pytest.raises(TypeError, match="pages"):
        Declared()  # type: ignore[call-arg]


def test_a_field_without_a_text_is_named() -> None:
    @dataclass
    class Bare:
        pages: int = 4

    with pytest.raises(TypeError, match=r"Bare.pages says nothing of itself: declare it with trait\("):
        traits_of(Bare)


def test_what_two_targets_can_do() -> None:
    assert (both(True, False), both(True, True)) == (False, True)
    assert (smaller(None, 3), smaller(4, 3), smaller(None, None)) == (3, 3, None)


def test_a_contract_announces_its_optional_methods() -> None:
    mine = Contract("mine", "Mine.", KVManagerTarget, {"pages": 4}, "mine:make", Declared, KVManagerOptional)
    assert mine.announced == {"swap": "can_swap"}
    assert mine.factory == "make(pages)"
    assert list(mine.methods)[:2] == ["admit", "append"]
    assert list(mine.methods)[-1] == "events"


def test_every_contract_says_what_it_is() -> None:
    for contract in CONTRACTS.values():
        assert len(contract.about) > 40
        assert contract.about.endswith(".")
        assert contract.announced.keys() <= contract.methods.keys()
        assert list(contract.rules) == list(range(1, len(contract.rules) + 1))
