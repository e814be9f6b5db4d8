"""Operations of radix_cache, with the types of their arguments."""

from __future__ import annotations

from typing import NotRequired

from kvlockstep.models.core.operations import Arguments, Ints

_TREE_CALL: Arguments = {"tokens": Ints, "handle": str | None, "spoil": NotRequired[str | None]}
OPERATIONS: dict[str, Arguments] = {
    "serve": {"tokens": Ints, "handle": str, "hold": NotRequired[bool | None]},
    "match_prefix": {"tokens": Ints, "handle": str},
    "match_request": {"tokens": Ints, "handle": str},
    "lock": {"handle": str},
    "unlock": {"handle": str},
    "allocate": {"n": int},
    "evict": {"n": int},
    "free": {"pages": int, "spoil": NotRequired[str | None]},
    "insert_prefix": _TREE_CALL,
    "cache_finished": _TREE_CALL,
    "cache_unfinished": _TREE_CALL | {"into": NotRequired[str | None]},
    "reset": {},
}
