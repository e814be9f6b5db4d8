"""A state of a paged_cache as a picture."""

from __future__ import annotations

from kvlockstep.models.core.picture import CACHED, FREE, HELD, UNKNOWN, Cell, Picture, Table, fields_table, numbers
from kvlockstep.properties.paged_cache.state import Held, View


def picture(view: View, held: Held) -> Picture:
    """Each block with the sequences that read it and the key it is registered under, and the block tables."""
    holders: dict[int, list[str]] = {}
    for sequence, table in view.tables.items():
        for block in table:
            holders.setdefault(block, []).append(f"s{sequence}")
    keys = {block: key for key, block in view.registered.items()}
    cells = {}
    for block, references in enumerate(view.refs):
        idle = CACHED if block in view.idle else UNKNOWN
        state = HELD if block in holders else FREE if block in view.free else idle
        content = f"registered under {keys[block]}" if block in keys else ""
        cells[block] = Cell(state, tuple(holders.get(block, ())), references, content)
    tables = tuple(
        (f"s{s}", str(view.lengths.get(s)), numbers(table), numbers(held.tokens.get(s, ())))
        for s, table in view.tables.items()
    )
    by_block = sorted(view.registered.items(), key=lambda pair: (pair[1], pair[0]))
    registered = tuple((str(key), str(block), numbers(held.prefixes.get(key, ()))) for key, block in by_block)
    lists = (("free, next first", numbers(view.free)), ("idle, next victim first", numbers(view.idle)))
    return Picture(
        "block",
        cells,
        (
            Table("block tables", ("sequence", "length", "blocks", "tokens"), tables),
            Table("registered prefixes", ("key", "block", "tokens"), registered),
            Table("pool", ("list", "blocks"), lists),
            fields_table("statistics", view.statistics),
        ),
    )
