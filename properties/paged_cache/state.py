"""State that the laws of paged_cache look at: what the cache shows (`View`), what its results imply (`Held`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.stamps import STAMPS, stamps
from kvlockstep.reference.paged_cache.contract import PagedStatistics

Tokens = tuple[int, ...]

POISON = STAMPS


class View(NamedTuple):
    """`content` has the stamps that each sequence reads through its table, `cached` those of each registered block."""

    tables: dict[int, list[int]]
    lengths: dict[int, int]
    registered: dict[int, int]
    free: list[int]
    idle: list[int]
    refs: list[int]
    statistics: PagedStatistics
    content: dict[int, list[int]]
    cached: dict[int, list[int]]


class Life(NamedTuple):
    """Life of a block: its index in tables, when it was last taken and given up, and how often it was used."""

    depth: int
    allocated: int
    released: int
    uses: int


class Counts(NamedTuple):
    """Counters since the last reset, as in PagedStatistics."""

    allocations: int = 0
    evictions: int = 0
    copies: int = 0
    hits: int = 0
    misses: int = 0


class Held(NamedTuple):
    """By the results so far: tokens and table of every live sequence, block and prefix of every registered key.

    `lives` has every block that was ever taken. No mapping is ever changed.
    """

    block_size: int
    blocks: int
    block_bytes: int
    policy: str
    clock: int = 0
    tokens: Mapping[int, Tokens] = {}
    tables: Mapping[int, Sequence[int]] = {}
    registered: Mapping[int, int] = {}
    prefixes: Mapping[int, Tokens] = {}
    lives: Mapping[int, Life] = {}
    counts: Counts = Counts()

    def blocks_for(self, tokens: int) -> int:
        """Number of blocks for that many tokens."""
        return -(-tokens // self.block_size)


def keys_of(tokens: Tokens, block_size: int) -> list[int]:
    """One key for each full block: the stamp of its last token stands for the whole prefix up to there."""
    return stamps(tokens)[block_size - 1 :: block_size]


def keys_from(held: Held, sequence: int, first: int, blocks: int) -> list[int]:
    """Returns the keys of `blocks` blocks of a sequence, made up where it has no full block."""
    keys = keys_of(held.tokens.get(sequence, ()), held.block_size)
    return [keys[i] if 0 <= i < len(keys) else -1 - i for i in range(first, first + blocks)]


def asked_keys(op: Any, block_size: int) -> list[int]:
    """The keys that an allocate or a lookup asks for; an allocate may ask for more than its tokens have."""
    keys = keys_of(tuple(op.args["tokens"]), block_size)
    if op.name == "lookup":
        return keys[op.args["skip"] :]
    return [*keys, *range(op.args["keys"] - len(keys))][: op.args["keys"]]


def run_of(keys: Sequence[int], registered: Mapping[int, int], lives: Mapping[int, Life]) -> list[int]:
    """The blocks of the longest run of leading keys, each registered at its own index."""
    run: list[int] = []
    for key in keys:
        block = registered.get(key)
        if block is None or block not in lives or lives[block].depth != len(run):
            break
        run.append(block)
    return run


def rank(held: Held, block: int) -> tuple[int, ...]:
    """Sort key of an idle block: the smallest is evicted first."""
    life = held.lives.get(block, Life(0, 0, 0, 0))
    match held.policy:
        case "lru":
            return life.released, -life.depth
        case "fifo":
            return life.allocated, -life.depth
    return life.uses, life.released, -life.depth


def taken(step: Step[View, Held]) -> list[int]:
    """The blocks that an accepted allocate or append took, in the order of the table."""
    if isinstance(step.outcome, Refused):
        return []
    if step.op.name == "allocate":
        cached, blocks = step.outcome
        return list(blocks[cached // step.held.block_size :])
    if step.op.name == "append":
        before = step.before.tables.get(step.op.args["sequence"], [])
        return [block for block in step.after.tables.get(step.op.args["sequence"], []) if block not in before]
    return []


def evicted(step: Step[View, Held]) -> list[int]:
    """Lists the blocks whose key is no longer registered."""
    return [block for key, block in step.before.registered.items() if key not in step.after.registered]


def copied_block(step: Step[View, Held]) -> int | None:
    """The block that the append of this step must copy before it writes: partly filled, and shared or registered."""
    table = step.before.tables.get(step.op.args["sequence"], [])
    if not table or not step.before.lengths[step.op.args["sequence"]] % step.held.block_size:
        return None
    last = table[-1]
    frozen = sum(last in t for t in step.before.tables.values()) > 1 or last in step.before.registered.values()
    return last if frozen else None
