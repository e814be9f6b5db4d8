"""Converts what a kv_scheduler returns to the form that its judge uses. Anything else raises Divergence."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard, TypeVar

from kvlockstep.models.core.bounded import bounded, bounded_dict
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import whole, wholes
from kvlockstep.models.requests.adapter import answered
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv_scheduler.contract import Batch, Item

R = TypeVar("R")
PLAIN = {list, tuple}
TEXTS = {str}


def batch_of(answer: Any, schedule: Callable[..., Any], grouped: bool) -> Batch:
    """The batch that `schedule` returned; with groups their judge takes the copies and the tables."""
    if _is_plain(answer, grouped):
        return answer

    def take() -> Batch:
        items, preempted, copies = Batch(*bounded(answer))
        due: list[Any] = list(bounded(copies))
        if not grouped:
            due = [(whole(source), whole(target)) for source, target in due]
        return Batch([_item(item, grouped) for item in bounded(items)], _texts(preempted), due)

    return taken(take, answer, schedule, "a Batch")


def names_of(answer: Any, method: Callable[..., Any]) -> list[str]:
    """The request ids that a method returned."""
    if _are_texts(answer):
        return list(answer)
    return taken(lambda: _texts(answer), answer, method, "request ids")


def queues_of(queues: Callable[[], Any]) -> dict[str, list[str]]:
    """The request ids in each queue, by its name."""
    answer = answered(queues)
    if type(answer) is dict and all(_are_texts(ids) for ids in answer.values()):
        return answer
    return taken(
        lambda: {str(name): _texts(ids) for name, ids in bounded_dict(answer).items()}, answer, queues, "ids by queue"
    )


def _is_plain(batch: Any, grouped: bool) -> TypeGuard[Batch]:
    # Nearly every batch is: to take each apart and make it again took a tenth of a step.
    if type(batch) is not Batch or type(batch.items) is not list or not _are_texts(batch.preempted):
        return False
    return (
        type(batch.copies) in PLAIN and not batch.copies and all(_is_plain_item(item, grouped) for item in batch.items)
    )


def _is_plain_item(item: Any, grouped: bool) -> bool:
    if type(item) is not Item:
        return False
    rid, start, n, slots, tokens, samples, drafts, tables = item
    return (
        type(rid) is str
        and type(samples) is bool
        and type(start) is type(n) is type(drafts) is int
        # The laws compare each of these with what is known.
        and type(slots) is type(tokens) is list
        and (not slots or type(slots[0]) is int)
        and (not tokens or type(tokens[0]) is int)
        and (not grouped or type(tables) in PLAIN)
    )


def _are_texts(found: Any) -> bool:
    return type(found) in PLAIN and TEXTS.issuperset(map(type, found))


def _item(found: Any, grouped: bool) -> Item:
    rid, start, n, slots, tokens, samples, drafts, tables = Item(*bounded(found))
    return Item(
        _taken("rid", _text, rid, "a text"),
        _taken("start", whole, start, "a number"),
        _taken("n", whole, n, "a number"),
        _taken("slots", wholes, slots, "numbers"),
        _taken("tokens", wholes, tokens, "numbers"),
        _taken("samples", _flag, samples, "True or False"),
        _taken("drafts", whole, drafts, "a number"),
        _taken("groups", _list, tables, "a table or step for each group") if grouped else tables,
    )


def _taken(field: str, take: Callable[[Any], R], value: Any, wanted: str) -> R:
    try:
        return take(value)
    except (TypeError, ValueError, OverflowError):
        message = f"schedule returned an item whose {field} is {reprlib.repr(value)}, not {wanted}"
        raise Divergence(ERROR_CONTRACT.id, message) from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(values: Iterable[Any]) -> list[str]:
    if isinstance(values, str):
        raise TypeError
    return [_text(value) for value in bounded(values)]


def _list(values: Any) -> list[Any]:
    return list(bounded(values))


def _flag(value: Any) -> bool:
    if value not in (True, False):
        raise ValueError
    return bool(value)
