"""A transfer in flight: the places that it reads and writes, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import whole
from kvlockstep.models.requests.transfers.places import Place, Places
from kvlockstep.models.requests.transfers.traits import TransferTraits
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv.transfers import Transfer

KINDS = ("store", "load", "move")


@dataclass
class Moving:
    """A transfer whose end the target has not heard of.

    `contents` is what each source held at the start. `landed`: its bytes are at the targets. `told`: the target was
    called with its end, which it takes in at the next poll at the latest. `stale`: a reset came after its start.
    `batches` counts the batches scheduled since the start. Only the first `readable` sources can be read; the next one
    was lost in its tier.
    """

    transfer: Transfer
    sources: list[Place]
    targets: list[Place]
    contents: list[Any] = field(default_factory=list)
    landed: bool = False
    told: bool = False
    failed: bool = False
    stale: bool = False
    batches: int = 0
    readable: int = 0

    def __str__(self) -> str:
        return f"{self.transfer.kind} {self.transfer.id}"

    @property
    def reads_tier(self) -> bool:
        """True for a load and for a move: they may end with their first blocks written."""
        return self.transfer.kind != "store"


def placed(
    transfer: Transfer, traits: TransferTraits, places: Places, busy: Container[Hashable], said: Callable[..., Any]
) -> Moving:
    """The transfer, which the method `said` has reported, with its places; `busy` are the ids of others in flight.

    Raises Divergence for one that the contract does not know.
    """
    wrong = f"is of the kind {transfer.kind!r}" * (transfer.kind not in KINDS)
    if transfer.kind == "move" and not traits.moves:
        wrong = "is a move, and the target does not declare moves"
    if transfer.id in busy:
        wrong = "has the id of another one in flight"
    named = (transfer.source, transfer.tier) if transfer.kind == "move" else (transfer.tier,)
    sizes = [traits.tiers.get(name or "", 0) for name in named]
    if not all(sizes) and not wrong:
        wrong = f"names the tier {named[sizes.index(0)]!r}"
    if not transfer.pairs:
        wrong = "has no pairs"
    if wrong:
        raise Divergence(ERROR_CONTRACT.id, f"transfer {transfer.id!r} {wrong}")
    ends = _of_move if transfer.kind == "move" else _of_pool
    what = "pairs of two units" if transfer.kind == "move" else places.pairs
    sources, targets = taken(lambda: ends(transfer, places), transfer.pairs, said, what)
    for place in (*sources, *targets):
        size = traits.tiers.get(place.tier or "", 0)
        if place.tier is not None and not (isinstance(place.unit, int) and 0 <= place.unit < size):
            beyond = f"names a unit beyond the {size} of {place.tier}"
            raise Divergence(ERROR_CONTRACT.id, f"transfer {transfer.id!r} {beyond}")
    return Moving(transfer, sources, targets)


def _of_pool(transfer: Transfer, places: Places) -> tuple[list[Place], list[Place]]:
    """The sources and the targets of a store or a load."""
    load = transfer.kind == "load"
    ends = [places.end_of(pair, load) for pair in transfer.pairs]
    pool, tier = [Place(None, block) for block, _ in ends], [Place(transfer.tier, unit) for _, unit in ends]
    return (tier, pool) if load else (pool, tier)


def _of_move(move: Transfer, _: Places) -> tuple[list[Place], list[Place]]:
    """The sources and the targets of a move."""
    ends = [(whole(pair[0]), whole(pair[1])) for pair in move.pairs if len(pair) == 2]
    if len(ends) < len(move.pairs):
        raise ValueError(move.pairs)
    sources = [Place(move.source, unit) for unit, _ in ends]
    return sources, [Place(move.tier, unit) for _, unit in ends]
