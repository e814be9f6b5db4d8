"""What the copy engine has to know of its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from kvlockstep.reference.kv_manager.groups.contract import Group


@dataclass(frozen=True)
class TransferTraits:
    """The traits of a target that are about transfers. Those that its contract does not have keep their defaults."""

    block_size: int
    tiers: Mapping[str, int]
    fails: str | None = None
    ordered: bool = False
    late_release: bool = False
    partial_loads: bool = False
    in_steps: bool = False
    peer: str | None = None
    durable: bool = False
    groups: tuple[Group, ...] = ()

    @classmethod
    def of(cls, traits: Any, **known: Any) -> Self:
        """Takes over what a target has declared; `known` are traits that its contract decides."""
        declared = {field.name: getattr(traits, field.name) for field in fields(cls) if hasattr(traits, field.name)}
        return cls(**{**declared, **known})
