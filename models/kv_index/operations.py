"""Operations of kv_index, with the types of their arguments.

`store` and `evict` say what happens in the worker's cache; the event of it arrives at once, unless it is `lost`. No
command proposes the last four: they are the events of a recording, whose workers are not ours.
"""

from __future__ import annotations

from kvlockstep.models.core.operations import ANY_KEY, Arguments, Ints

STORED: Arguments = {"keys": Ints, "parent": int | None, "tokens": Ints, "extra_key": ANY_KEY}

OPERATIONS: dict[str, Arguments] = {
    "store": {"worker": int, "tokens": Ints, "first": int, "extra_key": ANY_KEY, "lost": bool | None},
    "evict": {"worker": int, "tokens": Ints, "n": int, "extra_key": ANY_KEY, "lost": bool | None},
    "clear": {"worker": int, "lost": bool | None},
    "repeat": {"worker": int, "number": int},
    "leave": {"worker": int},
    "resync": {"worker": int},
    "reload": {},
    "lookup": {"tokens": Ints, "extra_key": ANY_KEY},
    "stored": {"worker": int, "number": int, **STORED},
    "removed": {"worker": int, "number": int, "keys": Ints},
    "cleared": {"worker": int, "number": int},
    "resynced": {
        "worker": int,
        "number": int,
        "stored": list[tuple[tuple[int, ...], int | None, tuple[int, ...], ANY_KEY]],
        "removed": Ints,
    },
}
