"""Calls of an adapter: its traits, calls that may not raise, and what they return in the form that a judge uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from kvlockstep.models.core.bounded import FINITE, MOST_READ, bounded
from kvlockstep.models.core.calls import call_target, for_each
from kvlockstep.models.core.model import Divergence, Factory
from kvlockstep.models.core.safe_text import safe_text
from kvlockstep.models.core.taking import method_name, taken
from kvlockstep.models.core.whole import whole
from kvlockstep.models.requests.traits import as_number, taken_traits
from kvlockstep.properties.law import ERROR_CONTRACT, FREE_SLOTS, TERMINATION, Law, Refused
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv_manager.events import BlockRemoved, BlockStored
from kvlockstep.reference.kv_manager.groups.contract import Group, one_full

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# What a list of copies is.
PAIRS = "(source, target) pairs"

T = TypeVar("T", bound="DataclassInstance")


def make_adapter(factory: Factory, *sizes: int) -> Any:
    """Calls a factory with its sizes; an error that it raises becomes a Divergence."""
    adapter = call_target(factory, *sizes)
    if isinstance(adapter, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"the factory raised {adapter.error}")
    return adapter


def probed(factory: Factory, *sizes: Any) -> Any:
    """Makes a target to look at its traits; None if that fails."""
    try:
        return call_target(factory, *sizes)
    except Divergence:
        return None


def declares_groups(factory: Factory, contract: str) -> bool:
    """True if the targets of a factory have more than one full group."""
    groups = getattr(probed(factory, *CONTRACTS[contract].probe.values()), "groups", ())
    return isinstance(groups, tuple) and all(isinstance(group, Group) for group in groups) and not one_full(groups)


def declares_tiers(factory: Factory, contract: str) -> bool:
    """True if the targets of a factory have tiers."""
    return bool(getattr(probed(factory, *CONTRACTS[contract].probe.values()), "tiers", None))


def read_traits(adapter: Any, kind: type[T]) -> T:
    """The traits that an adapter declares; the others have their defaults. Raises Divergence."""
    declared, wrong = taken_traits(adapter, kind)
    if wrong:
        raise Divergence(ERROR_CONTRACT.id, "; ".join(wrong))
    return kind(**declared)


def not_checked(laws: Sequence[Law[Any]], traits: Any, shows_free: bool) -> dict[str, str]:
    """The laws that need what the adapter does not expose: id to reason."""
    lacks = {FREE_SLOTS: not shows_free, **{f.name: not getattr(traits, f.name) for f in fields(traits)}}
    reasons = {law.id: need for law in laws for need in law.needs if lacks[need]}
    return {
        id_: "free_slots returns None" if need == FREE_SLOTS else f"the target declares no {need}"
        for id_, need in reasons.items()
    }


def named(adapter: Any) -> dict[str, str]:
    """Returns the adapter's `engine` and `version`, if they are texts."""
    said = {name: getattr(adapter, name, None) for name in ("engine", "version")}
    return {name: safe_text(text) for name, text in said.items() if isinstance(text, str)}


def answered(method: Callable[..., Any], *args: Any) -> Any:
    """Calls a method of the adapter and returns its result. Raises Divergence for any error that it raises."""
    answer = call_target(method, *args)
    if isinstance(answer, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"{method_name(method)} raised {answer.error}")
    return answer


def answered_each(method: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
    """As `answered`, one call for each of these arguments; for questions that are asked in great numbers."""
    answers = call_target(for_each, method, arguments, called=str(getattr(method, "__name__", "call")))
    if isinstance(answers, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"{method_name(method)} raised {answers.error}")
    return answers


def number(method: Callable[..., Any], *args: Any) -> int:
    """Calls a method that must return a number. Raises Divergence if it does not."""
    answer = answered(method, *args)
    return answer if type(answer) is int else taken(lambda: as_number(answer), answer, method, "a number")


def numbers(method: Callable[..., Any], *args: Any, pool: int = 0) -> list[int] | None:
    """Calls a method that must return None or numbers (a list, an array, an iterator). Raises Divergence.

    An iterator may have MOST_READ numbers, or twice those of a `pool` that is larger.
    """
    answer = answered(method, *args)
    if answer is None:
        return None
    # `are_ints`, without a call: this is asked for every table of every step.
    if type(answer) is list:
        try:  # `suppress` would take longer than the sum
            if type(sum(answer)) is int:
                return answer
        except Exception:
            pass
    most = max(MOST_READ, 2 * pool)
    return taken(lambda: [whole(n) for n in bounded(answer, most, "numbers")], answer, method, "numbers")


def pairs(method: Callable[..., Any], *args: Any) -> list[tuple[int, int]] | None:
    """Calls a method that must return None or (source, target) pairs of slots. Raises Divergence."""
    answer = answered(method, *args)
    if answer is None:
        return None
    return taken(lambda: [(whole(s), whole(t)) for s, t in bounded(answer)], answer, method, PAIRS)


def events(method: Callable[..., Any]) -> list[Any]:
    """Calls a method that must return events. Raises Divergence."""
    answer = answered(method)
    return taken(lambda: [_event(event) for event in bounded(answer)], answer, method, "events")


def _event(event: Any) -> Any:
    """Returns an event with the types of fields that the listeners count on; raises TypeError if it has others."""
    if not isinstance(event, BlockStored | BlockRemoved):
        return event
    event = event._replace(keys=tuple(bounded(event.keys)), group=whole(event.group))
    hash((event.keys, event.medium))
    if isinstance(event, BlockStored):
        hash((event.parent, event.extra_key))
        event = event._replace(tokens=tuple(map(whole, bounded(event.tokens))), block_size=whole(event.block_size))
    return event


def listed(look: Callable[..., Any], *args: Any) -> Any:
    """The result of a query that must return None or a table, which ends."""
    answer = answered(look, *args)
    if answer is None or type(answer) in FINITE:
        return answer
    return taken(lambda: list(bounded(answer)), answer, look, "numbers")


def as_state(look: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a query for a fingerprint, or the law that it breaks: fingerprints judge nothing.

    Raises the Divergence of a query that does not return, since every further one would take as long.
    """
    try:
        return answered(look, *args)
    except Divergence as divergence:
        if divergence.law == TERMINATION.id:
            raise
        return divergence.law
