"""The rules of kv_manager. `kvlockstep explain "rule 5"` prints the fifth."""

from __future__ import annotations

RULES = {
    1: (
        "A step has this order: chunks, decodes, preemptions and withdrawals; admissions, of which the "
        "last may be withdrawn before the next; `copies`; `launch`; all writes; all reads; commits in "
        "any order. Finish, abort, fork, reset and eviction come between steps. An abort may also "
        "replace a commit."
    ),
    2: (
        "The judge checks a hit when a request reads it, not when `admit` returns it. So a manager may "
        "publish a block before it is computed, if the same forward writes it."
    ),
    3: (
        "The manager may swap slots at `reserve` and `commit`. The judge asks for them again at each "
        "forward. Between a reservation and its forward the judge reads no KV, and asks for "
        "slots only after a refusal."
    ),
    4: "Two requests may write equal content into one slot. Different content is a conflict.",
    5: (
        "Admission: a refusal is a violation if the whole prompt and `output_reserve` would fit, without "
        "any hit, into the blocks that no live request holds. Reservation: a refusal is a violation "
        "if its further blocks would fit, plus one block for each shared block that it writes to. "
        "Pending copies: with the traits that announce copies, the judge allows for blocks that wait "
        "for the copies of this step. These are one block for each reservation, and all blocks of the "
        "hit for each admission."
    ),
    6: "At least one token of a request is computed. Only computed tokens may be published.",
    7: "A partly filled block belongs to one request until a fork shares it. Without `groups` it is never hit.",
    8: "Between steps, `avail` plus the slots of the held blocks is `total`.",
    9: "A manager may keep or drop any cached prefix.",
    10: "The judge poisons the slots of `free_slots`, after the copies of the step have run.",
    11: "Rejected drafts are never appended. The request may keep their slots.",
    12: (
        "The judge asks its questions in four different orders (`ask` in a trace), since a question "
        "that flushes lazy work hides bugs."
    ),
    13: (
        "Every call has a time limit. A manager need not be deterministic (it may evict a random "
        "block). The check reports that a run did not repeat, and marks a failure that does not "
        "repeat as FLAKY."
    ),
    14: (
        "A listener that applies every event knows, before each admission, how many blocks the request "
        "will hit: the blocks at its head that are stored and not removed, with at least one token "
        "left to compute. A block is announced when it can be hit, not earlier, and a parent before "
        "its children. A key stands for one prefix with its extra key. Several blocks may be announced "
        "in one event or in several. A parent may be removed before its children, and even before "
        "they are stored. With `tiers` an event names the tier of its blocks as `medium`. Without `groups`, blocks "
        "that one load brings back are announced behind their parents, unless a request computes them "
        "meanwhile. With `groups` an event names the group of its blocks, and the parent may be a block of "
        "another group. The hit is then at least the longest length that every group can serve and that "
        "ends with a block of each."
    ),
    15: (
        "With `groups`, a forward over [start, stop) reads, in a full group, all positions below stop; in a "
        "window of reach r, those from start - r + 1 on; in a chunked group of reach r, those from the last "
        "multiple of r up to start on; of a state, the state behind start tokens. A rolling group of reach r "
        "reads what a window does, from start - r + 1 to start - 1, before anything is written, and the tokens of the "
        "forward from no slot; of these it writes at least those that a later forward may read. Nothing is asked of "
        "other positions. A hit serves all groups at once. All states are read before one is saved. What a step "
        "saves is the state behind each position that may turn out to be its last. A block belongs to one "
        "group at a time, and a state fills its block. Refusals are judged pool by pool: one is right if one "
        "pool is too small. A refusal lowers no count; a refused reservation may raise one, since windows slide first."
    ),
    16: (
        "With `tiers`, a request whose admission was answered with `Loading` holds its slots, and is neither scheduled "
        "nor read before `ready` has returned a number; it may be aborted or preempted. Then it goes on by `reserve`: "
        "with a chunk, or with all the rest where `chunk` is not declared. A transfer may end at any time, within a "
        "step as well; `poll` and `ready` come between steps. A refusal takes in nothing. What an admission waits for "
        "is submitted when `admit` returns. What was submitted before `launch` has returned runs in front of the step. "
        "A request that was admitted with a number reads in that step what is loaded for it, if `waits` names the "
        "load; such a load does not fail. No other request may count on a load that has not ended. With `moves`, a "
        "request that was answered with `Fetching` holds nothing, as after a refusal. It comes back like one that was "
        "preempted, or is aborted. Somebody is told so only while a move is in flight."
    ),
}
