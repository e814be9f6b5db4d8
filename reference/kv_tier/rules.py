"""The rules of kv_tier, by number: what the laws rest on and no single one of them says."""

from __future__ import annotations

RULES = {
    1: "A lookup, a load right behind its lookups, and every other call are made one at a time. Copies are not: the "
    "bytes of a store may arrive, and those of a load may leave, at any moment between its call and `complete`.",
    2: "Which chunks are evicted is the tier's business, and so is when a load counts as a use. What is evicted is in "
    "the plan of the store that needed the room; nothing is evicted at any other time.",
    3: "A unit is held by each plan in flight that uses it, and by each pin. What is held is not evicted, not free, "
    "and in no other store; several loads may read one unit. Without `loads_hold` a load holds nothing: it has read "
    "the bytes when its call returns, and hands them out later.",
    4: "A store is refused only if its new chunks do not fit into free units and chunks that nobody holds. Chunks that "
    "are offered to it and are there do not count as room: a sequence is worth nothing with a hole in it.",
    5: "A hit promises only the load that follows at once. Whoever needs it later pins it.",
    6: "Plans are completed once each. The judge completes one again now and then, as clean-up paths do, and nothing "
    "may change.",
    7: "A reset forgets chunks and pins. What a plan in flight uses is free only when the plan is completed, and its "
    "completion stores nothing.",
    8: "With `holds_bytes` a chunk may be damaged behind the tier's back. The tier may notice it in a lookup, when it "
    "is opened, or in a load; it must not hand out anything but the whole bytes.",
    9: "With `can_reopen` the process may end between any two calls. Chunks whose store was completed are there "
    "afterwards, in the same units, and no others.",
}
