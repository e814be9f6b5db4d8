"""Operations of kv_scheduler, with the types of their arguments."""

from __future__ import annotations

from typing import NotRequired

from kvlockstep.models.core.operations import ANY_KEY, Arguments, Ints

OPERATIONS: dict[str, Arguments] = {
    "add": {"request": str, "tokens": Ints, "extra_key": ANY_KEY, "max_tokens": int, "priority": int | None},
    "schedule": {"tokens": Ints, "accept": NotRequired[int], "drafts": NotRequired[Ints], "lost": NotRequired[int]},
    "update": {},
    "abort": {"request": str},
    "draft": {"request": str, "tokens": Ints},
    "reset": {},
    "drain": {"tokens": Ints},
    "complete": {"transfer": int},
    "complete_all": {},
    "fail": {"transfer": int},
    "tear": {"transfer": int, "written": int},
    "poll": {},
    "offer": {"tokens": Ints, "extra_key": ANY_KEY},
    "lose": {"tier": str, "unit": int},
}
