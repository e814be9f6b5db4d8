"""Operations of paged_cache, with the types of their arguments."""

from __future__ import annotations

from kvlockstep.models.core.operations import Arguments, Ints, Size

OPERATIONS: dict[str, Arguments] = {
    "allocate": {"sequence": int, "tokens": Ints, "keys": Size},
    "append": {"sequence": int, "tokens": Ints},
    "truncate": {"sequence": int, "tokens": int},
    "fork": {"sequence": int, "child": int, "tokens": int | None},
    "free": {"sequence": int},
    "finish": {"sequence": int},
    "register": {"sequence": int, "first": int, "blocks": Size},
    "register_as": {"sequence": int, "first": int, "keys": Ints},
    "lookup": {"tokens": Ints, "skip": int},
    "evict": {"blocks": int},
    "ref_count": {"block": int},
    "reset": {},
}
