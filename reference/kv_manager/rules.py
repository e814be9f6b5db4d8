"""The rules of kv_manager. `kvlockstep explain "rule 5"` prints the fifth."""

from __future__ import annotations

RULES = {
    1: (
        "A step is: chunks, decodes, preemptions and withdrawals; then admissions, of which the last "
        "may be withdrawn before the next; `copies`; `launch`; all writes; all reads; commits in any "
        "order. Finish, abort, fork, reset and eviction come between steps. An abort may also take "
        "the place of a commit."
    ),
    2: (
        "A hit is judged when it is read, not when it is promised: publishing before computing is "
        "legal if the same forward writes it."
    ),
    3: (
        "Slots may be swapped at `reserve` and `commit`. The judge asks for them again at each "
        "forward. Between a reservation and its forward no KV is read, and slots are asked for only "
        "after a refusal."
    ),
    4: "Two requests may write equal content into one slot. Different content is a conflict.",
    5: (
        "Admission: a refusal is a violation if the whole prompt and `output_reserve` fit, without "
        "any hit, into the blocks that no live request holds. Reservation: a refusal is a violation "
        "if its further blocks fit, plus one block for each shared block that it writes to. Pending "
        "copies: with the traits that announce copies, the judge allows for blocks that wait for the "
        "copies of this step, one for each reservation and all blocks of its hit for each admission."
    ),
    6: "At least one token of a request is computed. Only computed tokens may be published.",
    7: "A partly filled block is private until it is forked, and never hit.",
    8: "Between steps, `avail` plus the slots of the held blocks is `total`.",
    9: "No prefix has to survive, and none has to vanish.",
    10: "Slots named free are poisoned, after the copies of the step have run.",
    11: "Rejected drafts are never appended; their slots may stay.",
    12: (
        "The manager is asked about itself in four different orders (`ask` in a trace), since a "
        "question that flushes lazy work hides bugs."
    ),
    13: (
        "Every call has a time limit. Nothing has to come out the same way twice, as with a random "
        "victim: a check says that it did not, and marks a failure that does not repeat as FLAKY."
    ),
    14: (
        "A listener that takes in every event knows, before each admission, how many blocks it hits: "
        "those stored and not removed at the head of the request, with at least one token left to "
        "compute. A block is announced when it can be hit, not earlier, and a parent before its "
        "children. Under one key there is one prefix with its extra key. Nothing has to be announced "
        "at once, and nothing has to be merged. A parent may be gone before its children, and before "
        "they are stored."
    ),
}
