"""The slots that an operation on a radix_cache names."""

from __future__ import annotations

from kvlockstep.models.core.op import Op
from kvlockstep.properties.radix_cache import Held, View


def named_slots(op: Op, held: Held, view: View) -> list[int]:
    """Returns the slots of the match, then held ones, those held longest first; or malformed ones."""
    args, size = op.args, held.page_size
    if op.name == "free":
        slots = list(held.slots[: args["pages"] * size])
    else:
        grip = held.grips.get(args["handle"])
        matched = grip.slots if grip else ()
        slots = [*matched, *held.slots[: max(0, whole(len(args["tokens"]), size) - len(matched))]]
    return _spoilt(slots, args["spoil"], view, held) if args.get("spoil") else slots


def whole(tokens: int, page_size: int) -> int:
    """Slots of the whole pages that so many tokens take."""
    return -(-tokens // page_size) * page_size


def _spoilt(slots: list[int], spoil: str, view: View, held: Held) -> list[int]:
    """Slots that the caller must not name, whole pages where that is not what is wrong."""
    size = held.page_size
    if spoil == "short":
        return slots[:-1] if slots else [0] * (size - 1)
    kept = slots[: len(slots) - size]
    last = {
        "unknown": [held.total + i for i in range(size)],
        "free": view.free[:size] or [i for slots, _ in list(view.entries.values())[:1] for i in slots],
        "twice": slots[-2 * size : -size] or list(held.slots[:size]) or list(range(size)),
        "across": slots[-size:][::-1] if size > 1 else [-1],
    }[spoil]
    return kept + last
