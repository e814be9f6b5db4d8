"""Operations of kv_index, with the types of their arguments.

`store` and `evict` say what happens in the worker's cache; the event of it arrives at once, unless it is `lost`.
"""

from __future__ import annotations

from kvlockstep.models.core.operations import ANY_KEY, Arguments, Ints

OPERATIONS: dict[str, Arguments] = {
    "store": {"worker": int, "tokens": Ints, "first": int, "extra_key": ANY_KEY, "lost": bool | None},
    "evict": {"worker": int, "tokens": Ints, "n": int, "extra_key": ANY_KEY, "lost": bool | None},
    "clear": {"worker": int, "lost": bool | None},
    "repeat": {"worker": int, "number": int},
    "leave": {"worker": int},
    "resync": {"worker": int},
    "reload": {},
    "lookup": {"tokens": Ints, "extra_key": ANY_KEY},
}
