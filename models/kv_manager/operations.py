"""Operations of kv_manager, with the types of their arguments."""

from __future__ import annotations

from kvlockstep.models.core.operations import ANY_KEY, Arguments, Ints

OPERATIONS: dict[str, Arguments] = {
    "admit": {"request": str, "tokens": Ints, "extra_key": ANY_KEY, "n": int},
    "resume": {"request": str, "n": int},
    "chunk": {"request": str, "n": int},
    "decode": {"request": str, "token": int, "drafts": Ints},
    "withdraw": {"request": str},
    "preempt": {"request": str},
    "forward": {"accept": int | dict[str, int] | None, "abort": list[str], "reverse": bool | None},
    "finish": {"request": str},
    "abort": {"request": str},
    "fork": {"request": str, "child": str},
    "evict_all": {},
    "reset": {},
    "ready": {"request": str},
    "complete": {"transfer": int},
    "complete_all": {},
    "fail": {"transfer": int},
    "tear": {"transfer": int, "written": int},
    "poll": {},
    "lose": {"tier": str, "unit": int},
}
