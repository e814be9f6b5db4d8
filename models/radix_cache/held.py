"""Updates of Held by the results of a radix_cache: each function applies one accepted operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvlockstep.models.core.op import Op
from kvlockstep.properties.radix_cache import Grip, Held, path
from kvlockstep.properties.stamps import stamps


def matched(held: Held, op: Op, outcome: tuple[int, tuple[int, ...]]) -> Held:
    """A handle has a new match, all just used."""
    length, slots = outcome
    prefix = tuple(op.args["tokens"][:length])
    grip = Grip(prefix, slots, 0, held.born.get(prefix, 0), held.resets)
    used = {**held.used, **dict.fromkeys(path(prefix, held.page_size), held.clock)}
    return held._replace(grips={**held.grips, op.args["handle"]: grip}, used=used)


def locked(held: Held, name: str, by: int) -> Held:
    """So many locks more."""
    grip = held.grips[name]
    return held._replace(grips={**held.grips, name: grip._replace(locks=grip.locks + by)})


def unlocked(held: Held, name: str) -> Held:
    """Removes a lock; its path counts as used after everything else that the operation has used."""
    held = locked(held, name, -1)
    clock = held.clock + 1
    used = {**held.used, **dict.fromkeys(path(held.grips[name].prefix, held.page_size), clock)}
    return held._replace(used=used, clock=clock)


def cached(held: Held, op: Op, outcome: Any, slots: Sequence[int]) -> Held:
    """A sequence is cached in these slots."""
    tokens, size, name = tuple(op.args["tokens"]), held.page_size, op.args["handle"]
    start = len(held.grips[name].prefix) if name else 0
    stop = len(tokens) // size * size
    there = outcome if isinstance(outcome, int) else _taken_from(slots, outcome[1], start)
    new = path(tokens, size)[there // size :]
    mine = set(held.slots)
    written = [pair for pair in zip(slots[start:], stamps(tokens)[start:], strict=False) if pair[0] in mine]
    held = held._replace(
        stamps={**held.stamps, **dict(written)},
        born={**held.born, **dict.fromkeys(new, held.clock)},
        used={**held.used, **dict.fromkeys(path(tokens, size), held.clock)},
    )
    if op.name == "insert_prefix":
        return held._replace(slots=without(held.slots, slots[outcome:stop]))
    if op.name == "cache_finished":
        return unlocked(held._replace(slots=without(held.slots, slots[start:])), name)
    length, found = outcome
    prefix = tokens[:length]
    grip = Grip(prefix, found, 1, held.born.get(prefix, 0), held.resets)
    kept = without(held.slots, slots[start:stop])
    held = locked(held, name, -1)
    return held._replace(slots=kept, grips={**held.grips, op.args.get("into") or name: grip})


def reset(held: Held) -> Held:
    """Nothing is held or cached any more."""
    grips = {name: grip._replace(locks=0) for name, grip in held.grips.items()}
    return held._replace(resets=held.resets + 1, slots=(), grips=grips, born={}, used={}, stamps={})


def without(slots: Sequence[int], gone: Iterable[int]) -> tuple[int, ...]:
    """The other slots."""
    lost = set(gone)
    return tuple([slot for slot in slots if slot not in lost])


def _taken_from(given: Sequence[int], found: Sequence[int], matched: int) -> int:
    """The length up to which a request has been given other slots than its own."""
    pairs = list(zip(found, given, strict=False))
    others = [i for i in range(matched, len(pairs)) if pairs[i][0] != pairs[i][1]]
    return others[-1] + 1 if others else matched
