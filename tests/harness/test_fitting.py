"""A target that does not fit its contract by shape is a usage error, found before its first step."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.impl.variants.kv_manager import VARIANTS
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.adapter import read_traits
from kvlockstep.models.requests.traits import WRONG, kinds_of
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.contract import KVManagerOptional, KVManagerTarget
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.reference.kv_scheduler import KVScheduler
from kvlockstep.reference.kv_scheduler.contract import KVSchedulerOptional, KVSchedulerTarget
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.targets.registry import OWN_TARGETS, faults, load
from kvlockstep.targets.validation import misfits

WITH_TRAITS = [contract for contract in CONTRACTS.values() if contract.traits]
TRAITS = [(contract, name) for contract in WITH_TRAITS for name in contract.traits]
KV_OPTIONAL = CONTRACTS["kv_manager"].announced
SCHEDULER_OPTIONAL = CONTRACTS["kv_scheduler"].announced
NEVER_RIGHT = object()


def manager(**attributes: Any) -> type[KVManager]:
    return type("Odd", (KVManager,), attributes)


def own_manager(**attributes: Any) -> Callable[..., Any]:
    """One that sets these attributes of its instance."""

    def make(blocks: int, block_size: int) -> Any:
        made = KVManager(blocks, block_size)
        vars(made).update(attributes)
        return made

    return make


def plain(**attributes: Any) -> type:
    """A manager that declares no trait but those that are needed, and these."""
    methods = {name: getattr(KVManager, name) for name in vars(KVManagerTarget) if not name.startswith("_")}
    return type("Plain", (), {**methods, "__init__": lambda self, *sizes: None, **attributes})


ALL = {
    **{
        f"{contract}-{name}": (contract, path)
        for contract, targets in OWN_TARGETS.items()
        for name, path in targets.items()
    },
}


@pytest.mark.parametrize(("contract", "path"), ALL.values(), ids=ALL)
def test_what_comes_with_the_package_fits(contract: str, path: str) -> None:
    assert misfits(contract, load(path)) == []


def test_every_fault_and_every_variant_fits() -> None:
    assert {fault.id: wrong for fault in faults().values() if (wrong := misfits(fault.contract, fault.make))} == {}
    assert {name: wrong for name, make in VARIANTS.items() if (wrong := misfits("kv_manager", make))} == {}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda self, rid, tokens: 0, "admit(rid, tokens) is called as admit(rid, tokens, extra_key, n)"),
        (lambda self, rid, tokens, n: 0, "admit(rid, tokens, n) is called as admit(rid, tokens, extra_key, n)"),
        (lambda self, rid, tokens, key, n, more: 0, "admit(rid, tokens, key, n, more) is called as"),
        (lambda self, rid, tokens, key, *, n: 0, "admit(rid, tokens, key, *, n) is called as"),
        (lambda self, rid=1, *, n=2, **more: 0, "admit(rid=..., *, n=..., **more) is called as"),
        (lambda self, rid, *others, n, **more: 0, "admit(rid, *others, n, **more) is called as"),
        (5, "admit is 5, not a method"),
    ],
)
def test_a_method_that_cannot_be_called_as_its_contract_calls_it(method: Any, message: str) -> None:
    (wrong,) = misfits("kv_manager", manager(admit=method))
    assert wrong.startswith(message)
    assert not callable(method) or f"({__file__}:{method.__code__.co_firstlineno})" in wrong


def test_a_method_that_is_async() -> None:
    async def admit(self: Any, rid: str, tokens: Any, extra_key: Any, n: int) -> int:
        return 0

    (wrong,) = misfits("kv_manager", manager(admit=admit))
    assert wrong.startswith("admit is async, so a call would return a coroutine")


@pytest.mark.parametrize("name", KV_OPTIONAL)
def test_an_optional_method_is_looked_at_if_its_trait_announces_it(name: str) -> None:
    def method(self: Any, one: Any, two: Any, three: Any) -> None:
        """Takes more than any optional method is given."""

    trait = KV_OPTIONAL[name]
    announced = {"event_listener": "set", "tiers": {"host": 1}}.get(trait, True)
    sizes = {"block_size": 4, "total": 32}
    wrong = misfits("kv_manager", plain(**sizes, **{name: method, trait: announced}))
    others = [other for other, of in KV_OPTIONAL.items() if of == trait and other != name]
    assert [text for text in wrong if text.startswith(f"{name}(one, two, three) is called as {name}(")]
    assert len(wrong) == 1 + bool(others)
    assert misfits("kv_manager", plain(**sizes, **{name: method})) == []


def test_every_optional_method_has_a_signature_and_a_trait() -> None:
    optional = {name for name in vars(KVManagerOptional) if not name.startswith("_")}
    assert optional == set(KV_OPTIONAL)
    scheduler = {name for name in vars(KVSchedulerOptional) if not name.startswith("_")}
    assert scheduler == set(SCHEDULER_OPTIONAL) - set(vars(KVSchedulerTarget))


def anything(*arguments: Any, **more: Any) -> Any:
    """What a decorator often makes of a method."""


@functools.wraps(lambda self: None)
def passes_on(self: Any, *arguments: Any) -> Any:
    """Says that it is something without parameters."""


@pytest.mark.parametrize(
    "method",
    [
        anything,
        passes_on,
        staticmethod(anything),
        functools.partialmethod(anything, 1),
        MagicMock(),
        max,
        lambda self, rid, tokens, key=None, n=1, more=0: 0,
    ],
)
def test_a_method_that_takes_what_it_is_given(method: Any) -> None:
    assert misfits("kv_manager", manager(admit=method, launch=anything)) == []


def test_a_property_that_is_a_method() -> None:
    wrong = misfits("slot_pool", type("Odd", (SlotPool,), {"free_count": lambda self: 0}))
    assert wrong == ["free_count is a method, but must be an attribute"]


class Scheduler(KVScheduler):
    def update(self, sampled: Any) -> Any:  # type: ignore[override]
        """Hears of no drafts."""


def test_a_scheduler_with_drafts_is_called_with_them() -> None:
    (wrong,) = misfits("kv_scheduler", Scheduler)
    assert wrong.startswith("update(sampled) is called as update(sampled, accepted)")
    assert misfits("kv_scheduler", type("Undrafted", (Scheduler,), {"drafts": 0})) == []


def test_a_scheduler_with_drafts_in_flight_is_told_what_the_device_knows() -> None:
    odd = type("Odd", (OverlapScheduler,), {"drafts": 2, "overlap": 2, "schedule": lambda self: None})
    assert any(wrong.startswith("schedule() is called as schedule(accepted)") for wrong in misfits("kv_scheduler", odd))
    one_at_a_time = type("Odd", (OverlapScheduler,), {"drafts": 2, "overlap": 1, "schedule": lambda self: None})
    assert not any("schedule" in wrong for wrong in misfits("kv_scheduler", one_at_a_time))


@pytest.mark.parametrize(("contract", "trait"), TRAITS, ids=[f"{c.name}-{trait}" for c, trait in TRAITS])
def test_a_trait_that_has_no_value_of_its_kind(contract: Any, trait: str) -> None:
    made = load(contract.reference)(*contract.probe.values())
    setattr(made, trait, NEVER_RIGHT)
    wrong = misfits(contract.name, lambda *_: made)
    assert wrong[-1].startswith(f"the trait {trait} is <object")
    assert len([text for text in wrong if "the trait" in text]) == 1


@pytest.mark.parametrize(
    ("trait", "value", "message"),
    [
        ("chunk", "yes", "not True or False"),
        ("chunk", None, "not True or False"),
        ("can_fork", [1], "not True or False"),
        ("chunk_align", 0, "not a number from 1 on"),
        ("block_size", 0, "not a number from 1 on"),
        ("total", None, "not a number from 1 on"),
        ("total", 7.5, "not a number from 1 on"),
        ("total", float("inf"), "not a number from 1 on"),
        ("total", True, "not a number from 1 on"),
        ("total", 0, "not a number from 1 on"),
        ("max_length", 0, "not a number from 1 on"),
        ("lookahead_blocks", -1, "not a number from 0 on"),
        ("event_listener", "sets", "not one of (None, 'set', 'counting')"),
        ("event_listener", ["set"], "not one of (None, 'set', 'counting')"),
        ("hash_trust", None, "not a text"),
    ],
)
def test_a_trait_with_a_wrong_value(trait: str, value: Any, message: str) -> None:
    wrong = misfits("kv_manager", own_manager(**{trait: value}))
    assert wrong[-1] == f"the trait {trait} is {value!r}, {message}"


@pytest.mark.parametrize("error", [AttributeError("no config yet"), ZeroDivisionError("no config yet")])
def test_a_trait_that_cannot_be_read(error: Exception) -> None:
    def chunk(_self: Any) -> bool:
        raise error

    made = type("Made", (KVManager,), {"chunk": property(chunk)})
    assert misfits("kv_manager", made) == [f"the trait chunk raised {type(error).__name__}: no config yet"]
    with pytest.raises(Divergence, match="the trait chunk raised"):
        read_traits(made(4, 2), Traits)


def test_a_method_is_not_said_to_be_called_otherwise_while_a_trait_that_changes_it_is_wrong() -> None:
    made = type("Made", (KVScheduler,), {"drafts": -1, "update": lambda self, sampled, accepted: ()})
    assert misfits("kv_scheduler", made) == ["the trait drafts is -1, not a number from 0 on"]


def test_numbers_and_flags_of_other_libraries_are_traits() -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    traits = {"chunk_align": numpy.int64(2), "chunk": numpy.True_, "can_fork": torch.tensor(True), "extra_key": 1}
    assert misfits("kv_manager", own_manager(**traits, max_length=None)) == []


def test_a_default_is_of_its_own_kind() -> None:
    for contract in WITH_TRAITS:
        for name in contract.traits:
            kind = kinds_of(contract.declared)[name]
            assert kind.needed or kind.take(contract.traits[name].default) is not WRONG


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("can_forks", True, "can_fork"),
        ("canFork", True, "can_fork"),
        ("chunked", True, "chunk"),
        ("chunk_aligned", 16, "chunk_align"),
        ("max_lenght", 64, "max_length"),
        ("prefix_caching", False, "prefix_cache"),
        ("event_listeners", "set", "event_listener"),
        ("tokens_per_decodes", 1, "tokens_per_decode"),
        ("copy_at_admit", True, "copies_at_admit"),
    ],
)
def test_a_misspelt_trait_is_asked_for(name: str, value: Any, meant: str) -> None:
    assert f"{name} = {value!r} is not in kv_manager: did you mean {meant}?" in misfits(
        "kv_manager", plain(**{name: value})
    )


def test_a_trait_is_misspelt_where_its_own_name_is_set_too() -> None:
    assert misfits("kv_manager", manager(can_forks=True)) == [
        "can_forks = True is not in kv_manager: did you mean can_fork?"
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunks", []),
        ("chunks", 4),
        ("chunk_size", 512),
        ("chunking", None),
        ("max_len", 4096),
        ("can_preempt", True),
        ("can_restart", True),
        ("blocks", 8),
        ("num_blocks", 8),
        ("totals", {}),
        ("policies", ["lru"]),
        ("event_log", "set"),
        ("forks", 3),
        ("events_seen", 0),
        ("resets", lambda self: None),
        ("_can_forks", True),
    ],
)
def test_an_attribute_of_its_own_is_left_alone(name: str, value: Any) -> None:
    wanted = {"block_size": 4, "total": 32}
    makes = plain(**{name: value}, **wanted), manager(**{name: value})
    assert not any("did you mean" in wrong for make in makes for wrong in misfits("kv_manager", make))


def test_what_an_instance_counts_is_left_alone() -> None:
    assert misfits("kv_manager", own_manager(output_reserved=3, tokens_per_decodes=2, chunk_aligned=8)) == []


def test_a_missing_method_is_asked_for_under_the_name_that_is_there() -> None:
    class Odd(KVManager):
        can_fork = True
        fork = None

        def forks(self, rid: str, child: str) -> None:
            """Misspelt."""

    del Odd.fork
    odd = plain(forks=Odd.forks, can_fork=True, total=8, block_size=4)
    assert misfits("kv_manager", odd)[-1] == "forks(...) is not in kv_manager: did you mean fork?"


def test_all_that_is_wrong_is_told_at_once() -> None:
    odd = plain(chunk="yes", chunk_align=0, can_forks=True, total=8, admit=lambda self, rid: 0)
    told = "; ".join(misfits("kv_manager", odd))
    for part in ("lacks for kv_manager: block_size", "chunk is 'yes'", "chunk_align is 0", "can_fork?", "admit(rid) "):
        assert part in told


def test_what_is_wrong_can_be_sent_to_another_process() -> None:
    wrong = misfits("kv_manager", manager(chunk=object(), admit=lambda self: 0))
    assert len(wrong) == 2
    assert pickle.loads(pickle.dumps(wrong)) == wrong
