"""What the copy engine has to know of its target."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_manager.groups.contract import Group

# Which tiers' transfers may fail, as the trait `fails` has it.
Fails = str | Mapping[str, str] | None


@dataclass(frozen=True)
class TransferTraits:
    """The traits of a target that are about transfers. Those that its contract does not have keep their defaults."""

    block_size: int
    tiers: Mapping[str, int]
    fails: Fails = None
    loses: bool | Collection[str] = False
    moves: bool = False
    ordered: bool = False
    late_release: bool = False
    partial_loads: bool = False
    in_steps: bool = False
    peer: str | None = None
    silent_tiers: bool | Collection[str] = False
    durable: bool = False
    groups: tuple[Group, ...] = ()

    @classmethod
    def of(cls, traits: Any, **known: Any) -> Self:
        """Takes over what a target has declared; `known` are traits that its contract decides."""
        declared = {field.name: getattr(traits, field.name) for field in fields(cls) if hasattr(traits, field.name)}
        return cls(**{**declared, **known})

    def may_fail(self, transfer: Transfer) -> bool:
        """Returns whether a transfer may fail. A move is a load from one tier and a store to the other."""
        if transfer.kind != "move":
            return self._fails(transfer.tier, f"{transfer.kind}s")
        return self._fails(transfer.tier, "stores") or self._fails(transfer.source or "", "loads")

    def may_lose(self, tier: str) -> bool:
        """Returns whether a tier may lose a unit; a load that reads it has to be one that may fail."""
        named = self.loses if isinstance(self.loses, bool) else tier in self.loses
        return named and self._fails(tier, "loads")

    def announces(self, tier: str) -> bool:
        """Returns whether events say everything that a tier has. Of what others have put into a peer none does."""
        silent = self.silent_tiers if isinstance(self.silent_tiers, bool) else tier in self.silent_tiers
        return not silent and tier != self.peer

    def _fails(self, tier: str, what: str) -> bool:
        fails = self.fails.get(tier) if isinstance(self.fails, Mapping) else self.fails
        return fails in ("any", what)
