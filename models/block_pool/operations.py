"""Operations of block_pool, with the types of their arguments."""

from __future__ import annotations

from kvlockstep.models.core.operations import Arguments, Ints
from kvlockstep.reference.block_pool.contract import ExtraKey

_KEYS_OF_REQUEST: Arguments = {"request": int, "tokens": Ints, "extra_keys": list[ExtraKey]}
OPERATIONS: dict[str, Arguments] = {
    "allocate": {"n": int},
    "touch": {"blocks": Ints},
    "free": {"blocks": Ints},
    "cache_full_blocks": _KEYS_OF_REQUEST | {"table": Ints, "cached": int, "full": int},
    "find_longest_prefix": _KEYS_OF_REQUEST | {"limit": int | None},
    "reset": {},
}
