"""Traits that a target declares, each with its default and its meaning in one place."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

Common = Callable[[Any, Any], Any]
both: Common = operator.and_


class Trait(NamedTuple):
    """One trait of a contract, as `traits_of` reads it off its field.

    The first sentence of `about` stands alone as a summary. A number is at least `least`. A truthy value announces the
    optional `methods`, and brings `types` that no method names. `common` takes the values of two targets and returns
    what both can do; None where each target keeps its own. A `required` trait has no default.
    """

    name: str
    default: Any
    about: str
    least: int
    methods: tuple[str, ...]
    types: tuple[type, ...]
    common: Common | None
    required: bool

    @property
    def summary(self) -> str:
        """The first sentence of `about`, without its full stop."""
        return self.about.partition(". ")[0].removesuffix(".")


def trait(
    default: Any,
    about: str,
    *,
    least: int = 0,
    method: str | tuple[str, ...] = (),
    types: tuple[type, ...] = (),
    common: Common | None = None,
) -> Any:
    """A field of a dataclass of traits. The arguments are those of `Trait`; `method` is one name or several."""
    methods = (method,) if isinstance(method, str) else method
    return dataclasses.field(default=default, metadata=_metadata(about, least, methods, types, common))


def required(about: str, *, least: int = 0) -> Any:
    """A trait without a default: every target declares it."""
    return dataclasses.field(metadata=_metadata(about, least, (), (), None))


def _metadata(
    about: str, least: int, methods: tuple[str, ...], types: tuple[type, ...], common: Common | None
) -> dict[str, Any]:
    return {"about": about, "least": least, "methods": methods, "types": types, "common": common}


def traits_of(declared: type | None) -> dict[str, Trait]:
    """The traits of a dataclass by name, in the order of its fields; none for None.

    Raises TypeError for a field that is not made by `trait` or `required`.
    """
    if declared is None:
        return {}
    for f in dataclasses.fields(declared):
        if "about" not in f.metadata:
            raise TypeError(
                f"{declared.__name__}.{f.name} says nothing of itself: declare it with trait(default, about)"
            )
    return {
        f.name: Trait(name=f.name, default=f.default, required=f.default is dataclasses.MISSING, **f.metadata)
        for f in dataclasses.fields(declared)
    }


def smaller(a: int | None, b: int | None) -> int | None:
    """The smaller of two limits, of which None is none."""
    return min((limit for limit in (a, b) if limit is not None), default=None)
