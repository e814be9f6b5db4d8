"""Operations of slot_prefix_cache, with the types of their arguments."""

from __future__ import annotations

from typing import NotRequired

from kvlockstep.models.core.operations import Arguments, Ints

OPERATIONS: dict[str, Arguments] = {
    "insert": {"tokens": Ints, "slot": int, "version": int, "pinned": NotRequired[bool | None]},
    "find": {"tokens": Ints},
    "pin": {"tokens": Ints},
    "release": {"tokens": Ints},
    "reuse": {"slot": int, "length": int},
    "copy_kv": {"tokens": Ints, "target": int},
}
