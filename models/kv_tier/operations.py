"""Operations of kv_tier as they stand in a trace. A key is (hash, extra key); plans are numbered from 0."""

from __future__ import annotations

from kvlockstep.models.core.operations import Arguments

Keys = list[tuple[int, int | None]]
OPERATIONS: dict[str, Arguments] = {
    "lookup": {"keys": Keys, "owner": str},
    "store": {"keys": Keys, "owner": str},
    "load": {"keys": Keys, "owner": str},
    "write": {"plan": int},
    "complete": {"plan": int, "ok": bool},
    "touch": {"keys": Keys},
    "release": {"owner": str},
    "reset": {},
    "damage": {"keys": Keys, "how": str},
    "reopen": {},
}
