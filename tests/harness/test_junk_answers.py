"""Whatever a target returns, the judge has a verdict: no answer is an error of ours, and half a slot is no slot."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from driving import walk
from slow import slow

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.random_walk import picker
from kvlockstep.drivers.random_walk import walk as walk_episode
from kvlockstep.models.core.bounded import MOST_READ
from kvlockstep.models.core.whole import are_ints, whole, wholes
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.models.requests.adapter import numbers
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_scheduler import KVScheduler
from kvlockstep.targets import resolve

# So many operations of so many episodes: a whole episode of a scheduler is hundreds, and finds nothing more.
STEPS, EPISODES = 40, 2
# What else than the reference has methods or answers of its own.
FURTHER = {"kv_manager": ("tiered", "groups"), "kv_scheduler": ("tiered", "groups")}
TARGETS = [(contract, name) for contract in MODELS for name in ("reference", *FURTHER.get(contract, ()))]


class Odd:
    """An answer that nothing can be done with."""


def damaged(answer: Any) -> Any:
    """The last element of each answer, and of each element in turn, is None."""
    if isinstance(answer, tuple) and hasattr(answer, "_replace"):
        return answer._replace(**{answer._fields[-1]: damaged(answer[-1])})
    if isinstance(answer, list | tuple) and answer:
        return type(answer)([*answer[:-1], damaged(answer[-1])])
    return {key: damaged(value) for key, value in answer.items()} if isinstance(answer, dict) else None


JUNK: dict[str, Callable[[Any], Any]] = {
    "None": lambda _answer: None,
    "5": lambda _answer: 5,
    "half": lambda _answer: 1.5,
    "text": lambda _answer: "x",
    "type": lambda _answer: int,
    "odd": lambda _answer: Odd(),
    "[None]": lambda _answer: [None],
    "[[]]": lambda _answer: [[]],
    "[0, text]": lambda _answer: [0, "x"],
    "endless": lambda _answer: itertools.count(),
    "endless row": lambda _answer: [itertools.count()],
    "pair": lambda _answer: ("x", 1.5),
    "damaged": damaged,
}


class Answering:
    """A target of which one method, or one property, answers something else."""

    def __init__(self, target: Any, method: str, change: Callable[[Any], Any]) -> None:
        self._target, self._method, self._change = target, method, change

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name != self._method:
            return found
        change = self._change
        if not callable(found):
            return change(found)

        def call(*args: Any, **named: Any) -> Any:
            return change(found(*args, **named))

        call.__name__ = name
        return call


def methods_of(target: Any) -> list[str]:
    """Its public methods and properties; traits are no answers."""
    kind = type(target)
    return [
        name
        for name in dir(kind)
        if not name.startswith("_") and (callable(getattr(target, name)) or isinstance(getattr(kind, name), property))
    ]


def changed(factory: Any, change: Callable[[Any], Any], method: str) -> Callable[..., Answering]:
    return lambda *sizes: Answering(factory(*sizes), method, change)


def played(contract: str, factory: Any, change: Callable[[Any], Any], method: str, steps: int) -> Trace | None:
    return walk(model_of(contract), changed(factory, change, method), steps, seed=0).failure


def began(contract: str, factory: Any, change: Callable[[Any], Any], method: str) -> Trace | None:
    """What the first operations of a few episodes find."""
    model = model_of(contract)
    with Watchdog(30.0).watching() as watchdog:
        for pick in (picker(0, episode) for episode in range(EPISODES)):
            make, scope = changed(factory, change, method), pick(model.scopes)
            if failure := walk_episode(model, make, scope, STEPS, pick, watchdog, Outcome("walk")):
                return failure
    return None


# What most answers are taken apart by; the others are for `make slow`.
OFTEN = ("None", "half", "[None]", "damaged")
OTHERS = tuple(kind for kind in JUNK if kind not in OFTEN)


@pytest.mark.parametrize("kinds", [OFTEN, *slow(OTHERS)], ids=["often", "others"])
@pytest.mark.parametrize(("contract", "name"), TARGETS)
def test_no_answer_is_an_error_of_ours(contract, name, kinds):
    pytest.importorskip("torch") if contract in ("kv_store", "kv_streams", "decode_graphs", "block_stack") else None
    factory = resolve(contract, name).factory
    methods = methods_of(factory(*CONTRACTS[contract].probe.values()))
    assert methods
    blamed = sum(began(contract, factory, JUNK[kind], method) is not None for method in methods for kind in kinds)
    # Of `launch` or `finish` nobody wants an answer; what is asked for after every step is blamed whatever it is.
    assert blamed >= len(kinds)


@pytest.mark.parametrize(
    "change",
    [
        lambda slots: [slot + 0.4 for slot in slots],
        lambda slots: [*slots[:1], None],
        lambda slots: [*slots[:1], "1"],
        lambda slots: "".join(map(str, slots)),
    ],
)
def test_a_manager_returns_whole_slots(change):
    failure = played("kv_manager", KVManager, change, "slots", steps=400)
    assert failure is not None
    assert failure.law == "error_contract"
    assert failure.message.startswith("slots returned ")
    assert failure.message.endswith(", not numbers")


def test_a_copy_is_between_whole_slots():
    def halves(pairs: Any) -> Any:
        return pairs and [(source + 0.3, target + 0.3) for source, target in pairs]

    failure = played("kv_manager", KVManager, halves, "fork", steps=2_000) or played(
        "kv_manager", KVManager, halves, "copies", steps=2_000
    )
    assert failure is not None
    assert failure.law == "error_contract"
    assert "not (source, target) pairs" in failure.message


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("rid", 5, "a text"),
        ("start", None, "a number"),
        ("n", 1.5, "a number"),
        ("slots", ["0"], "numbers"),
        ("tokens", None, "numbers"),
        ("samples", "yes", "True or False"),
        ("drafts", None, "a number"),
    ],
)
def test_the_field_of_an_item_is_named(field, value, wanted):
    def change(batch: Any) -> Any:
        return batch._replace(items=[item._replace(**{field: value}) for item in batch.items])

    failure = began("kv_scheduler", KVScheduler, change, "schedule")
    assert failure is not None
    assert failure.law == "error_contract"
    assert failure.message == f"schedule returned an item whose {field} is {value!r}, not {wanted}"


def test_numbers_of_any_type_are_numbers():
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")

    def arrays(batch: Any) -> Any:
        items = [item._replace(slots=torch.tensor(item.slots), tokens=numpy.array(item.tokens)) for item in batch.items]
        return batch._replace(items=items)

    assert played("kv_scheduler", KVScheduler, arrays, "schedule", steps=400) is None
    assert played("kv_manager", KVManager, torch.tensor, "slots", steps=400) is None
    assert [type(whole(number)) for number in (numpy.int64(3), torch.tensor(3), 3.0)] == [int] * 3


@pytest.mark.parametrize(
    ("method", "answer", "said"),
    [
        ("admit", False, "admit returned False, not a number: None refuses, 0 means that nothing is cached"),
        ("admit", "4", "admit returned '4', not a number: None refuses, 0 means that nothing is cached"),
        ("avail", True, "avail returned True, not a number"),
        ("free_now", None, "free_now returned None, not a number"),
    ],
)
def test_a_number_is_no_truth_value_and_no_text(method, answer, said):
    failure = played("kv_manager", KVManager, lambda _answer: answer, method, steps=10)
    assert failure is not None
    assert (failure.law, failure.message) == ("error_contract", said)
    assert "returns the kind of value that it names" in ERROR_CONTRACT.statement


def test_a_list_is_copied_and_looked_at_whole():
    mine = [1, 2]
    assert wholes(mine) == mine
    assert wholes(mine) is not mine
    assert [are_ints(values) for values in ([], [1, 2], [1, 2.0], [1, None], [[1]], (1, 2))] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("contract", "method", "said"),
    [
        ("kv_manager", "free_slots", "free_slots returned more than 100,000 numbers"),
        ("kv_manager", "slots", "slots returned more than 100,000 numbers"),
        ("kv_manager", "copies", "copies returned more than 100,000 elements"),
        ("kv_scheduler", "queues", "queues returned more than 100,000 elements"),
        ("kv_index", "snapshot", "snapshot returned more than 100,000 elements"),
        ("kv_tier", "free_units", "free_units returned more than 100,000 numbers"),
        ("block_pool", "allocate", "allocate returned more than 100,000 elements"),
        ("paged_cache", "table", "allocate returned more than 100,000 elements"),
        ("radix_cache", "free_slots", "observe returned more than 100,000 elements"),
    ],
)
def test_an_answer_without_an_end_is_read_up_to_a_bound(contract, method, said):
    failure = began(contract, resolve(contract, "reference").factory, JUNK["endless"], method)
    assert failure is not None
    assert (failure.law, failure.message) == ("error_contract", said)


def breaks_off(answer):
    yield from answer
    raise ValueError("no such page")


def test_an_error_inside_an_iterator_is_told():
    failure = played("kv_manager", KVManager, breaks_off, "slots", steps=10)
    assert failure is not None
    assert failure.message == "reading the result of slots raised ValueError: no such page"
    assert any("in breaks_off" in line for line in failure.details)


def test_a_large_pool_may_be_listed_by_an_iterator():
    assert numbers(lambda: iter(range(MOST_READ + 1)), pool=MOST_READ) == list(range(MOST_READ + 1))
