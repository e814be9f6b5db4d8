"""Updates of Held by the results of a paged_cache: each function applies one accepted operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvlockstep.properties.paged_cache.state import Held, Life, Tokens, keys_of
from kvlockstep.reference.paged_cache.contract import Allocation, Growth


def _without(mapping: Mapping[int, Any], *keys: int) -> dict[int, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}


def begun(held: Held, sequence: int, tokens: Tokens, table: Sequence[int], shared: int) -> Held:
    """A new sequence, whose first `shared` blocks are shared and the others taken."""
    lives = dict(held.lives)
    for i, block in enumerate(table):
        life = lives.get(block, Life(i, 0, 0, 0))
        lives[block] = life._replace(uses=life.uses + 1) if i < shared else Life(i, held.clock, 0, 1)
    held = evicted(held, table[shared:])
    return held._replace(
        tokens={**held.tokens, sequence: tokens}, tables={**held.tables, sequence: tuple(table)}, lives=lives
    )


def allocated(held: Held, sequence: int, tokens: Tokens, asked: int, outcome: Allocation) -> Held:
    """A new sequence by its allocation, which asked for `asked` keys."""
    hit = outcome.cached // held.block_size
    counts, new = held.counts, len(outcome.blocks) - hit
    held = held._replace(
        counts=counts._replace(
            allocations=counts.allocations + new, hits=counts.hits + hit, misses=counts.misses + asked - hit
        )
    )
    return begun(held, sequence, tokens, outcome.blocks, hit)


def grown(held: Held, sequence: int, tokens: Tokens, outcome: Growth) -> Held:
    """The sequence has further tokens, and where a block was copied the copy."""
    instead = dict(outcome.copies)
    kept = held.tables.get(sequence, ())
    table = [*(instead.get(block, block) for block in kept), *outcome.blocks]
    new = {*instead.values(), *outcome.blocks}
    lives = dict(held.lives)
    for source in instead:
        lives[source] = lives.get(source, Life(0, 0, 0, 0))._replace(released=held.clock)
    lives.update({block: Life(i, held.clock, 0, 1) for i, block in enumerate(table) if block in new})
    counts = held.counts
    counts = counts._replace(allocations=counts.allocations + len(new), copies=counts.copies + len(instead))
    held = evicted(held._replace(counts=counts, lives=lives), sorted(new))
    return held._replace(
        tokens={**held.tokens, sequence: held.tokens.get(sequence, ()) + tokens},
        tables={**held.tables, sequence: tuple(table)},
    )


def cut(held: Held, sequence: int, tokens: int) -> Held:
    """Only the first tokens of the sequence are left."""
    table, kept = held.tables.get(sequence, ()), held.blocks_for(tokens)
    lives = dict(held.lives)
    for block in table[kept:]:
        lives[block] = lives[block]._replace(released=held.clock)
    return held._replace(
        tokens={**held.tokens, sequence: held.tokens.get(sequence, ())[:tokens]},
        tables={**held.tables, sequence: table[:kept]},
        lives=lives,
    )


def ended(held: Held, sequence: int) -> Held:
    """The sequence is gone."""
    held = cut(held, sequence, 0)
    return held._replace(tokens=_without(held.tokens, sequence), tables=_without(held.tables, sequence))


def registered(held: Held, sequence: int, first: int, blocks: int) -> Held:
    """Blocks are registered, except those whose key has a block already."""
    tokens, table = held.tokens.get(sequence, ()), held.tables.get(sequence, ())
    keys = keys_of(tokens, held.block_size)[first : first + blocks]
    new = {key: table[first + i] for i, key in enumerate(keys) if key not in held.registered}
    prefixes = {key: tokens[: (first + i + 1) * held.block_size] for i, key in enumerate(keys) if key in new}
    return held._replace(registered={**held.registered, **new}, prefixes={**held.prefixes, **prefixes})


def evicted(held: Held, blocks: Sequence[int]) -> Held:
    """The registered ones of these blocks are not registered any more."""
    gone = [key for key, block in held.registered.items() if block in blocks]
    if not gone:
        return held
    return held._replace(
        registered=_without(held.registered, *gone),
        prefixes=_without(held.prefixes, *gone),
        counts=held.counts._replace(evictions=held.counts.evictions + len(gone)),
    )
