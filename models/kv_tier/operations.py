"""Operations of kv_tier as they stand in a trace. A key is (hash, extra key).

`nth` counts the plans in flight from the oldest, 0, so that an operation means something without those before it.
"""

from __future__ import annotations

from kvlockstep.models.core.operations import Arguments

Keys = list[tuple[int, int | None]]
OPERATIONS: dict[str, Arguments] = {
    "lookup": {"keys": Keys, "owner": str},
    "pin": {"keys": Keys, "owner": str},
    "store": {"keys": Keys, "owner": str},
    "load": {"keys": Keys, "owner": str},
    "write": {"nth": int},
    "complete": {"nth": int, "ok": bool},
    "complete_again": {"ok": bool},
    "touch": {"keys": Keys},
    "release": {"owner": str},
    "reset": {},
    "damage": {"keys": Keys, "how": str},
    "reopen": {},
}
