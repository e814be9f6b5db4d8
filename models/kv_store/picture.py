"""A state of a kv_store as a picture."""

from __future__ import annotations

from kvlockstep.models.core.picture import CACHED, FREE, Cell, Picture, Table, numbers
from kvlockstep.properties.kv_store import PLANES, Held, View


def picture(view: View, held: Held) -> Picture:
    """Each slot that was written, those of the host behind those of the device."""
    cells, rows = {}, []
    for where, planes, offset in (("device", view.device, 0), ("host", view.host, held.blocks * held.block_size)):
        for slot in range(len(planes[0][0]) if planes else 0):
            texts = [
                f"layer {n}: {' '.join(f'{name} {numbers(p[slot])}' for name, p in zip(PLANES, layer, strict=False))}"
                for n, layer in enumerate(planes)
            ]
            blank = not any(any(plane[slot]) for layer in planes for plane in layer)
            label = numbers(planes[0][0][slot])
            content = f"{where} slot {slot}: {'; '.join(texts)}"
            cells[offset + slot] = Cell(FREE, (), 0, content) if blank else Cell(CACHED, (label,), 0, content)
            if not blank:
                rows.append((f"{where} {slot}", "; ".join(texts)))
    memory = (("memory_bytes", str(view.memory_bytes)),)
    return Picture(
        "slot",
        cells,
        (Table("written slots", ("slot", "K and V"), tuple(rows)), Table("memory", ("counter", "value"), memory)),
        held.block_size,
    )
