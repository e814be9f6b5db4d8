"""A state of a radix_cache as a picture."""

from __future__ import annotations

from kvlockstep.models.core.picture import CACHED, CALLER, FREE, HELD, UNKNOWN, Cell, Picture, Table, numbers
from kvlockstep.properties.radix_cache import Held, View


def picture(view: View, held: Held) -> Picture:
    """Each slot under the prefix of its page, or with the caller who took it; the tree; what can be evicted."""
    cells = {slot: Cell(UNKNOWN) for slot in range(held.total)}
    cells |= {slot: Cell(HELD, (CALLER,), 1) for slot in held.slots}
    cells |= {slot: Cell(FREE) for slot in view.free}
    entries = []
    for prefix, (slots, locks) in sorted(view.entries.items()):
        entries.append((numbers(prefix), numbers(slots), str(locks)))
        for slot in slots:
            cells[slot] = Cell(HELD if locks else CACHED, (numbers(prefix),), locks)
    free, evictable, protected = view.sizes
    counters = (
        ("free", str(free)),
        ("evictable", str(evictable)),
        ("protected", str(protected)),
        ("order of eviction", numbers(view.order)),
    )
    return Picture(
        "slot",
        cells,
        (
            Table("prefix tree", (), tuple((line,) for line in view.tree.splitlines())),
            Table("prefix entries", ("prefix", "slots of its last page", "locks"), tuple(entries)),
            Table("sizes", ("counter", "value"), counters),
        ),
        held.page_size,
    )
