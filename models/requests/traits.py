"""The values that a trait of an adapter may have, read off the type of its field."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from kvlockstep.models.core.calls import describe_error
from kvlockstep.models.core.whole import whole
from kvlockstep.models.requests.contradictions import contradictions
from kvlockstep.reference.kv_manager.groups.contract import KINDS, Group
from kvlockstep.reference.traits import Trait, traits_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WRONG = object()
# Kinds of groups whose reach counts.
REACHING = ("window", "chunked", "rolling")
_UNDECLARED = object()
# Attributes whose values code of the class returns.
COMPUTED = (property, cached_property)


@dataclass(frozen=True)
class Kind:
    """Kind of the values of a trait. `take` returns a value as the judge uses it, or WRONG; `wanted` says which fit.

    `exact` is the type of a value that is meant for this trait; `needed`: the trait has no default. `odd` says what is
    wrong with a part of a value, if it can.
    """

    wanted: str
    take: Callable[[Any], Any]
    exact: type
    needed: bool
    odd: Callable[[Any], str] = lambda _: ""

    def complaint(self, name: str, value: Any) -> str:
        """Says why a trait cannot have a value that is WRONG."""
        if odd := self.odd(value):
            return f"{name}{odd}"
        return f"the trait {name} is {reprlib.repr(value)}, not {self.wanted}"


@cache
def kinds_of(traits: type[DataclassInstance]) -> dict[str, Kind]:
    """Each trait with the kind of its values. Raises TypeError for a field of a type that is not known here."""
    hints = get_type_hints(traits)
    return {name: _kind(trait, hints[name]) for name, trait in traits_of(traits).items()}


def taken_traits(adapter: Any, traits: type[DataclassInstance]) -> tuple[dict[str, Any], list[str]]:
    """The traits that an adapter declares, by name, and a sentence for each whose value cannot be.

    If each value can be, the sentences are about those that cannot be together.
    """
    declared, wrong = {}, []
    for name, kind in kinds_of(traits).items():
        try:
            # With a default a property that raises AttributeError would count as not declared.
            computed = isinstance(getattr(type(adapter), name, None), COMPUTED)
            value = getattr(adapter, name) if computed else getattr(adapter, name, _UNDECLARED)
        except Exception as error:
            wrong.append(f"the trait {name} raised {describe_error(error)}")
            continue
        if value is _UNDECLARED:
            continue
        taken = kind.take(value)
        if taken is WRONG:
            wrong.append(kind.complaint(name, value))
        else:
            declared[name] = taken
    return declared, wrong or contradictions(traits, declared)


def as_number(value: Any) -> int | None:
    """An integer as such, whatever type it has; None for anything else."""
    try:
        return whole(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _kind(trait: Trait, hint: Any) -> Kind:
    # The arguments of a Literal are values, those of a union are types.
    kinds = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    plain = [kind for kind in kinds if kind is not type(None)]
    if get_origin(plain[0]) is Literal:
        choices = (*((None,) if len(kinds) > len(plain) else ()), *get_args(plain[0]))
        if plain[1:] == [Mapping[str, plain[0]]]:  # type: ignore[valid-type]
            wanted = f"one of {choices}, or {{name: one of {get_args(plain[0])}}}"
            return Kind(wanted, partial(_choices, choices), str, trait.required)
        return Kind(f"one of {choices}", partial(_choice, choices), str, trait.required)
    if plain == [bool, Collection[str]]:
        return Kind("True, False or names", _flag_or_names, bool, trait.required)
    if plain == [bool]:
        return Kind("True or False", _flag, bool, trait.required)
    if plain == [int]:
        number = partial(_number, trait.least, trait.default is None)
        return Kind(f"a number from {trait.least} on", number, int, trait.required)
    if plain == [str]:
        return Kind("a text", partial(_text, trait.default is None), str, trait.required)
    if plain == [Mapping[str, int]]:
        sizes = partial(_sizes, trait.least)
        return Kind(f"None or {{name: a number from {trait.least} on}}", sizes, dict, trait.required)
    if plain == [Group, Ellipsis]:
        return Kind(f"Groups of kinds {', '.join(KINDS)}", _groups, tuple, trait.required, _odd_group)
    raise TypeError(f"the trait {trait.name} has a type that no rule here knows: {hint}")


def _flag(value: Any) -> Any:
    """Also 0 and 1, and what other libraries have for True and False."""
    if isinstance(value, bool):
        return value
    return bool(value) if as_number(value) in (0, 1) else WRONG


def _number(least: int, optional: bool, value: Any) -> Any:
    if value is None and optional:
        return None
    found = None if isinstance(value, bool) else as_number(value)
    return WRONG if found is None or found < least else found


def _text(optional: bool, value: Any) -> Any:
    return value if isinstance(value, str) or (value is None and optional) else WRONG


def _sizes(least: int, value: Any) -> Any:
    """An empty mapping is None: there are none of what it counts."""
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return WRONG
    sizes = {name: _number(least, False, size) for name, size in value.items()}
    return WRONG if WRONG in sizes.values() else sizes


def _groups(value: Any) -> Any:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) and not any(map(_oddity, value)) else WRONG


def _odd_group(value: Any) -> str:
    """What is wrong with the first group of which something is."""
    groups = value if isinstance(value, (list, tuple)) else ()
    return next((f"[{g}]{oddity}" for g, group in enumerate(groups) if (oddity := _oddity(group))), "")


def _oddity(group: Any) -> str:
    """What is wrong with a group. A window or a chunk without a reach is taken for a slip."""
    if not isinstance(group, Group):
        return f" is {reprlib.repr(group)}, not a Group"
    if group.kind not in KINDS:
        return f".kind is {reprlib.repr(group.kind)}, not one of {', '.join(KINDS)}"
    if not isinstance(group.pool, str):
        return f".pool is {reprlib.repr(group.pool)}, not a text"
    sizes = {"block_size": group.block_size, "units": group.units}
    if group.kind in REACHING:
        sizes["reach"] = group.reach
    odd = (name for name, size in sizes.items() if not isinstance(size, int) or isinstance(size, bool) or size < 1)
    return next((f".{name} is {reprlib.repr(sizes[name])}, not a number from 1 on" for name in odd), "")


def _choices(choices: tuple[str | None, ...], value: Any) -> Any:
    """One choice for all, or one for each name. An empty mapping is no choice."""
    if not isinstance(value, Mapping):
        return _choice(choices, value)
    named = all(isinstance(name, str) and value[name] is not None for name in value)
    fits = named and WRONG not in [_choice(choices, each) for each in value.values()]
    return (dict(value) or None) if fits else WRONG


def _flag_or_names(value: Any) -> Any:
    """Names in their order without repetitions; none of them are False."""
    if isinstance(value, list | tuple | set | frozenset):
        names = sorted(value) if isinstance(value, set | frozenset) else list(dict.fromkeys(value))
        return (tuple(names) or False) if all(isinstance(name, str) for name in names) else WRONG
    return _flag(value)


def _choice(choices: tuple[str | None, ...], value: Any) -> Any:
    return value if (value is None or isinstance(value, str)) and value in choices else WRONG
