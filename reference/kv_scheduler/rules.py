"""The rules of kv_scheduler. `kvlockstep explain "rule 5"` prints the fifth."""

from __future__ import annotations

RULES = {
    1: (
        "add, schedule, update, abort and reset may come in any order that respects `overlap`. reset "
        "comes only with nothing in flight. `drain`, in a trace, schedules and updates until every "
        "request has ended."
    ),
    2: (
        "A batch writes when it is scheduled. The next batch may write blocks that the scheduler has "
        "freed since, because it runs later on the same stream."
    ),
    3: (
        "An item continues where the KV of its request stops. If the request held nothing, the item "
        "starts anywhere before its last known token. It computes at least one token, and only known "
        "tokens and drafts. Tokens in flight are known to the judge."
    ),
    4: (
        "An item samples if and only if it computes the last known token. Only then may drafts follow. "
        "They are the drafts that were offered last, or the first of them; a scheduler may leave them "
        "out. Rejected drafts do not count as computed. The request continues behind the last "
        "accepted draft, even while the batch that had them is in flight. Blocks that were published "
        "with rejected drafts must not be hit."
    ),
    5: "The judge checks hits, equal writes and early publishing as in kv_manager: when they are read.",
    6: (
        "A preempted request holds nothing, and is not in the batch that preempts it. It comes back "
        "with all its sampled tokens and all accepted drafts. That includes those in flight at its "
        "preemption, unless `drops_late_tokens`."
    ),
    7: (
        "A request that has ended, or was aborted, may hold its slots and stand in a queue until its "
        "last batch is back; then it is gone. Tokens that arrive for it later are discarded. Until "
        "the scheduler learns that a request has ended, the request may be scheduled once more for "
        "each batch in flight."
    ),
    8: "Between operations, `avail` plus the slots of the held blocks is `total`.",
    9: (
        "With live requests and nothing in flight, a batch is not empty: each request fits into the "
        "pool alone. Without new requests, the batches sample a token before they could have computed "
        "all known tokens again, and every request ends. With `late_release` and without `tiers` a "
        "batch may stay empty while `limbo` is not 0 and the live requests, up to their ends, do not "
        "all fit beside it; 20 batches in a row at most."
    ),
    10: "Beyond `policy` a scheduler is free in placement, eviction and the choice between requests.",
    11: (
        "With `event_listener` the events say what can be hit, as in kv_manager (rule 14 there). A request that starts "
        "hits what a listener knew at some moment of the `schedule` that starts it; with a load of its own batch, "
        "perhaps more, up to what the tiers have behind that. One that has waited for a load was admitted before, and "
        "hits this or less. A load reads what the events of its tier have announced. "
        "Without `groups`, the pool announces each block that a load brings back behind its parent, unless a request "
        "computes it meanwhile. The events leave no more blocks in the pool than are not free, and no more in a tier "
        "than can be hit there. What `silent_tiers` have is not looked at."
    ),
}
