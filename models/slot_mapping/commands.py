"""Commands of slot_mapping: rows grow, move and are committed; batches are mapped, larger and smaller ones in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Factory, Scope
from kvlockstep.models.core.op import Op, Pick, command, one_in, require, sample
from kvlockstep.models.requests.adapter import read_traits
from kvlockstep.reference.slot_mapping.contract import MappingTraits

SHARDS = ((2, 0, 1), (2, 1, 1), (2, 1, 2), (3, 1, 1), (4, 3, 2), (3, 2, 4))
BITS_32 = 1 << 31
MOST_BLOCKS = 1 << 28
# The operations that need a trait.
NEEDED = {"clear": "can_move", "move": "can_move", "swap": "can_move", "gather": "can_gather", "shard": "can_shard"}


@dataclass(frozen=True)
class SlotMappingScope(Scope):
    """`rows` rows of up to `width` blocks with numbers below `blocks`, and a buffer of `tokens` slots.

    `far`: there are blocks up to MOST_BLOCKS, so that slots take more than 32 bits.
    """

    rows: int
    width: int
    block_size: int
    tokens: int
    blocks: int
    far: bool = False
    exhaustive: bool = False

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_json().items() if name != "exhaustive"}


class SlotMappingCommands(LockstepModel[SlotMappingScope]):
    def __init__(self, scope: SlotMappingScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        self.traits = read_traits(self.target, MappingTraits)
        self._grown: set[int] = set()
        self._changed: set[int] = set()
        self._mapped = self._gathered = 0

    @command(3)
    def add(self, pick: Pick) -> Op:
        """A row gets new blocks."""
        row = self._row(pick)
        require(self.traits.replaces_staged or row not in self._changed)
        return Op("add", row=row, blocks=self._blocks(pick, self.scope.width))

    @command(3)
    def append(self, pick: Pick) -> Op:
        """A row grows."""
        row = self._row(pick)
        room = self.scope.width - len(self.held.rows[row])
        require(room)
        return Op("append", row=row, blocks=self._blocks(pick, room))

    @command(1)
    def clear(self, pick: Pick) -> Op:
        """A row loses its blocks."""
        require(self.can("clear"))
        return Op("clear", row=self._row(pick))

    @command(1)
    def move(self, pick: Pick) -> Op:
        """A row takes the place of another one."""
        require(self.can("move") and self.scope.rows > 1)
        source, target = sample(pick, range(self.scope.rows), 2)
        return Op("move", source=source, target=target)

    @command(1)
    def swap(self, pick: Pick) -> Op:
        """Two rows change places."""
        require(self.can("swap") and self.scope.rows > 1)
        one, other = sample(pick, range(self.scope.rows), 2)
        return Op("swap", one=one, other=other)

    @command(1)
    def shard(self, pick: Pick) -> Op:
        """The worker becomes one of several."""
        require(self.can("shard"))
        fitting = [shard for shard in SHARDS if self.scope.block_size % shard[2] == 0]
        ranks, rank, interleave = pick([(1, 0, 1), *fitting[: 1 if self.scope.exhaustive else None]])
        return Op("shard", ranks=ranks, rank=rank, interleave=interleave)

    @command(3)
    def commit(self, pick: Pick) -> Op:
        """Rows are brought to the device."""
        return Op("commit")

    @command(6)
    def slots(self, pick: Pick) -> Op:
        """A batch is mapped: for each request some positions in a row, as a chunk, a decode or drafts have."""
        batch, starts, positions = self._batch(pick), [0], list[int]()
        for row in batch:
            covered = len(self.held.committed[row]) * self.scope.block_size * self.held.shard[0]
            room = min(covered, self.scope.tokens - len(positions))
            most = room if one_in(3, pick) else min(room, 3)
            n = pick(range(most, -1, -1))
            first = pick(range(covered - n + 1)) if n else 0
            positions += range(first, first + n)
            starts.append(len(positions))
        return Op("slots", batch=batch, starts=starts, positions=positions)

    @command(3)
    def gather(self, pick: Pick) -> Op:
        """The rows of a batch are gathered, with padding behind them."""
        require(self.can("gather"))
        batch = self._batch(pick)
        return Op("gather", batch=batch, padded=pick(range(len(batch), self.scope.rows + 1)))

    def can(self, operation: str) -> bool:
        return operation not in NEEDED or bool(getattr(self.traits, NEEDED[operation]))

    def _row(self, pick: Pick) -> int:
        return pick(range(self.scope.rows))

    def _blocks(self, pick: Pick, most: int) -> list[int]:
        """Up to `most` block numbers, now and then from the far end."""
        blocks = range(self.scope.blocks)
        far = self.scope.far and self.traits.far_slots
        return [
            MOST_BLOCKS - 1 - pick(blocks) if far and one_in(2, pick) else pick(blocks)
            for _ in range(pick(range(most, -1, -1)))
        ]

    def _batch(self, pick: Pick) -> list[int]:
        rows = range(self.scope.rows)
        count = pick(range(len(rows), -1, -1))
        return sample(pick, rows, count) if self.traits.any_batch and not self.scope.exhaustive else list(range(count))
