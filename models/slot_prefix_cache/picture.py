"""A state of a slot_prefix_cache as a picture."""

from __future__ import annotations

from kvlockstep.models.core.picture import CACHED, FREE, Cell, Picture, Table, numbers
from kvlockstep.properties.slot_prefix_cache import Held, Prefix, View


def picture(view: View, held: Held, slots: int) -> Picture:
    """Each slot under the longest prefixes of its entries."""
    prefixes: dict[int, list[Prefix]] = {}
    for prefix, (slot, _) in view.entries.items():
        prefixes.setdefault(slot, []).append(prefix)
    cells = {}
    for slot in range(slots):
        here = [p for p in prefixes.get(slot, ()) if not any(q != p and q[: len(p)] == p for q in prefixes[slot])]
        cells[slot] = Cell(CACHED if here else FREE, tuple(map(numbers, here)), len(here), numbers(view.kv[slot]))
    entries = tuple(
        (numbers(prefix), str(slot), str(version), str(held.pins.get(prefix, 0)))
        for prefix, (slot, version) in sorted(view.entries.items())
    )
    return Picture("slot", cells, (Table("prefix entries", ("prefix", "slot", "version", "pins"), entries),))
