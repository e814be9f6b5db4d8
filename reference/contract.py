"""Contracts: an entry of the catalogue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kvlockstep.reference.traits import Trait, traits_of


@dataclass(frozen=True)
class Contract:
    """One contract, as the catalogue lists it.

    `about` is a paragraph that says what such a target is. `probe` has the parameters of its factory, with sizes to try
    it with. `reference` is the `module:factory` of the reference model. Laws and messages name `rules` by their number.

    Where targets declare traits, `declared` is their dataclass, and `optional` the protocol of the methods that may be
    left out and `protocol` does not have. `instead` returns the protocol whose methods take the place of those of the
    same name under the traits that it is given, or None.
    """

    name: str
    about: str
    protocol: type
    probe: dict[str, object]
    reference: str
    declared: type | None = None
    optional: type | None = None
    instead: Callable[[Any], type | None] = lambda _traits: None
    rules: Mapping[int, str] = field(default_factory=dict)

    @property
    def factory(self) -> str:
        """The call that makes a target: `make(blocks, block_size)`."""
        return f"make({', '.join(self.probe)})"

    @cached_property
    def traits(self) -> dict[str, Trait]:
        """The traits by name, in the order in which reports show them."""
        return traits_of(self.declared)

    @cached_property
    def announced(self) -> dict[str, str]:
        """The name of each method that may be left out, with the trait that announces it."""
        return {method: trait.name for trait in self.traits.values() for method in trait.methods}

    @cached_property
    def methods(self) -> dict[str, Any]:
        """The functions and properties of a target by name, those of `optional` last."""
        return {**members(self.protocol), **members(self.optional)}


def members(protocol: type | None) -> dict[str, Any]:
    """The public functions and properties of a protocol by name, inherited ones first; none for None."""
    return {
        name: member
        for base in reversed(protocol.__mro__ if protocol is not None else ())
        for name, member in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
