"""The rules of kv_scheduler. `kvlockstep explain "rule 5"` prints the fifth."""

from __future__ import annotations

RULES = {
    1: (
        "Any order of add, schedule, update, abort and reset may come that keeps to `overlap`; reset "
        "only with nothing in flight. `drain`, in a trace, schedules and updates until every request "
        "has ended."
    ),
    2: (
        "A batch writes when it is scheduled. What the scheduler frees afterwards may be written "
        "again by the next batch, which comes behind it on the same stream."
    ),
    3: (
        "An item goes on where the KV of its request stops; one that held nothing starts anywhere "
        "before its last known token. It computes at least one token, and none that is neither known "
        "nor a draft. Tokens in flight are known to the judge."
    ),
    4: (
        "A token is sampled exactly where the last known token is computed. Drafts come behind that "
        "token alone. They are those that were offered last, or the first of them; a scheduler may "
        "leave them out. Rejected drafts are not computed: the request goes on behind the last "
        "accepted one, also while the batch that had them is in flight, and whatever was published of "
        "the others must not be hit."
    ),
    5: "Hits, equal writes and early publishing are judged as in kv_manager: when they are read.",
    6: (
        "A preempted request holds nothing. It comes back with all that it has sampled and all drafts "
        "that were accepted, including what was in flight at its preemption, unless "
        "`drops_late_tokens`."
    ),
    7: (
        "A request that has ended, or was aborted, may hold its slots and stand in a queue until its "
        "last batch is back; then it is gone. Tokens that arrive for it later are discarded. Until "
        "the scheduler learns that a request has ended, the request may be scheduled once more for "
        "each batch in flight."
    ),
    8: "Between the operations `avail` plus the slots of the held blocks is `total`.",
    9: (
        "With live requests and nothing in flight a batch is not empty: each request fits into the "
        "pool alone. Without new requests a token is sampled before all that is known could have been "
        "computed again, and every request ends."
    ),
    10: "No placement, no eviction and no choice between requests is asked for beyond `policy`.",
}
