"""Operations of kv_store, with the types of their arguments."""

from __future__ import annotations

from kvlockstep.models.core.operations import MOVES, Arguments, Ints

OPERATIONS: dict[str, Arguments] = {
    "write": {"layer": int | None, "slots": Ints, "stamps": Ints},
    "gather": {"layer": int, "slots": Ints},
    "gather_host": {"layer": int, "slots": Ints},
    "scales": {"layer": int, "slots": Ints},
    "scales_host": {"layer": int, "slots": Ints},
    "copy_rows": MOVES,
    "copy_prefix": {"source": Ints, "target": Ints, "tokens": int},
    "copy_blocks": MOVES,
    "swap_out": MOVES,
    "swap_in": MOVES,
    "blocks_within": {"budget": int},
}
