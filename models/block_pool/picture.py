"""A state of a block_pool as a picture."""

from __future__ import annotations

from kvlockstep.models.core.picture import CACHED, CALLER, FREE, HELD, Cell, Picture, Table, numbers
from kvlockstep.properties.block_pool import View
from kvlockstep.reference.block_pool.contract import Prefix


def picture(view: View) -> Picture:
    """Each block with its holders and its prefix, and the free queue."""
    cached = {block: prefix_text(prefix) for prefix, blocks in view.entries.items() for block in blocks}
    cells = {}
    for block, references in enumerate(view.refs):
        state = HELD if references else CACHED if block in cached else FREE
        holders = (cached.get(block, CALLER),) if references or block in cached else ()
        cells[block] = Cell(state, holders, references, cached.get(block, ""))
    entries = tuple((prefix_text(prefix), numbers(blocks)) for prefix, blocks in view.entries.items())
    counters = (
        ("free queue, next first", numbers(view.queue)),
        ("num_free", str(view.num_free)),
        ("num_evictable", str(view.num_evictable)),
        ("usage", f"{view.usage:.3f}"),
    )
    return Picture(
        "block",
        cells,
        (Table("prefix entries", ("prefix", "blocks"), entries), Table("pool", ("counter", "value"), counters)),
    )


def prefix_text(prefix: Prefix) -> str:
    """The tokens of a prefix and the extra keys that it stands under."""
    keys = [key for key in prefix.extra_keys if key is not None]
    return numbers(prefix.tokens) + (f" under {', '.join(map(str, keys))}" if keys else "")
