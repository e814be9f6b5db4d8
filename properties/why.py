"""Why each law matters: what a user of an engine sees when it does not hold."""

from __future__ import annotations

WHY = {
    "no_double_free": (
        "A slot that is freed twice is handed out twice. Two requests then write into one another's KV, and both "
        "go on with text that looks plausible and is wrong. A counter that is decremented twice also frees what "
        "is held."
    ),
    "no_aliasing": (
        "The second holder overwrites the first one's KV. Nothing crashes; one user's answer is computed from "
        "another user's context."
    ),
    "conservation": (
        "A slot that is neither free nor held is lost: the pool shrinks for as long as the process runs. One that "
        "is both is about to be given to a second holder."
    ),
    "accounting": (
        "Schedulers admit and preempt by these numbers. One that is too small starves the engine, one that is too "
        "large admits what does not fit, and both drift until a restart."
    ),
    "version_monotone": (
        "The version is what tells a reader that a slot was reused since. If it does not move, stale KV is served "
        "as a hit; if it moves too often, good entries are thrown away."
    ),
    "version_current": (
        "An entry with the version of an earlier use, or of another slot, sends a reader to KV that is not that "
        "prefix any more."
    ),
    "atomicity": (
        "Callers retry what was refused. A refusal that took something leaks it with every retry, and a loaded "
        "engine refuses thousands of times a minute."
    ),
    "admission_honesty": (
        "A needless refusal idles the GPU or ends in an endless loop of retries. An acceptance that does not fit "
        "fails later, in the middle of a batch."
    ),
    "agreement": (
        "Where a contract leaves no choice, any difference from the reference is a defect, whether or not another "
        "law has a name for it."
    ),
    "error_contract": (
        "An engine can handle the errors that it expects. Anything else ends the scheduler's loop, and with it "
        "every request in flight."
    ),
    "termination": (
        "An eviction loop that finds nothing to evict, a retry that changes nothing: the engine hangs without an "
        "error, and every request waits."
    ),
    "structure": (
        "A lookup walks from the shortest prefix on. An entry whose shorter prefixes are missing is never found, "
        "and never evicted: it holds its memory for good."
    ),
    "eviction_safety": (
        "Evicting what a request still reads gives its KV to somebody else. The request goes on over memory that "
        "is being rewritten."
    ),
    "eviction_order": (
        "Evicting what was just used and keeping what is cold turns a prefix cache into overhead; hit rates fall, "
        "and nothing reports an error."
    ),
    "write_isolation": (
        "Shared blocks are the point of a prefix cache and of forks. A write into a block that another request "
        "reads, without a copy first, changes the other one's context."
    ),
    "content_equality": (
        "A request that reads KV which a cold run would not have written continues another text than its own. "
        "This is what every other law protects in the end."
    ),
    "gather_exact": (
        "Attention reads what gather hands it. A wrong slot, layer or order is a wrong answer, even though "
        "everything was stored right."
    ),
    "prefix_soundness": (
        "A hit on a prefix that is not the request's own, for want of a parent, an adapter or a salt in the key, "
        "serves one user the context of another. Keys that collide do the same."
    ),
    "prefix_completeness": (
        "What is cached and not found is computed again. That costs exactly what the cache was built to save, and "
        "shows only as a hit rate that nobody questions."
    ),
    "refcount_exact": (
        "One reference too few, and a block is evicted or freed under its reader; one too many, and it is never "
        "freed. Counts that are off by one surface hours later, somewhere else."
    ),
    "reset_complete": (
        "Weights are reloaded, sessions end, and the cache is reset. What survives belongs to another model or to "
        "another user."
    ),
    "graph_contract": (
        "A captured graph replays fixed addresses. An allocation inside a capture is made once and repeated "
        "never; a graph that reads what was there at capture time computes on yesterday's tables."
    ),
    "no_stale_graph": (
        "A graph that was captured over a table that has moved reads freed memory, with no error from the device."
    ),
    "capture_refuses": (
        "What happens on the host during a capture is not part of the graph. If it is accepted, host and device "
        "disagree from then on."
    ),
    "padding_isolation": (
        "Graphs come in fixed sizes, and the lanes that are left over run too. If they write, they write into "
        "somebody's KV."
    ),
    "stream_order": (
        "Memory that one stream frees while another still reads it is reused too early. It depends on timing, so "
        "tests on an idle machine pass."
    ),
    "event_consistency": (
        "Routers send a request to the engine that has its prefix, by the events they hear. One that misses an event "
        "sends it where everything is computed again, or keeps sending to a cache that is long gone; both show only "
        "as a hit rate."
    ),
    "hit_bounds": (
        "If everything is said to be cached, nothing is computed and there is no logit to sample from; a negative "
        "or huge hit indexes outside the table."
    ),
    "leak_freedom": (
        "An idle engine that has less memory than at its start has less every hour. It ends in refusals, or in a "
        "restart at night."
    ),
    "free_count": (
        "More free than available means that a counter is wrong; whoever trusts it takes blocks that are not there."
    ),
    "eviction_complete": "What an emptied cache keeps back is held by nobody and can be used by nobody.",
    "table_limit": (
        "A worker keeps a row for each request, as long as the longest one needs. A block beyond it is written past "
        "the end of the row, into the next one's, or ends the engine with an index error."
    ),
    "coverage": "An accepted request without a slot for every position writes into whatever its table happens to say.",
    "purity": (
        "Metrics and schedulers ask at any time. A question that does work makes behaviour depend on who looks, "
        "and hides defects from whoever looks in order to find them."
    ),
    "live_items": (
        "A batch with a request that has ended computes for nobody, and writes into slots that are free by now."
    ),
    "continuity": (
        "A gap leaves positions without KV, which attention reads all the same; an overlap computes twice and "
        "counts twice."
    ),
    "input_tokens": "Tokens that are not the request's own make all of its KV wrong from there on.",
    "sampling": (
        "A token that is sampled before the prompt is complete answers half a question; one that is never sampled "
        "leaves its user waiting."
    ),
    "held_tables": (
        "The scheduler frees by its table, and the worker writes by its own. Where they differ, the worker writes "
        "into memory that belongs to somebody else."
    ),
    "batch_limits": (
        "Buffers and graphs are sized for the budget. A batch beyond it runs out of memory, or writes past the end."
    ),
    "one_queue": "A request in two queues runs twice; one in none is forgotten, and its user waits for ever.",
    "preemption_frees": (
        "Preemption is there to free memory. If it frees none, the scheduler preempts everybody in turn, and "
        "nothing runs."
    ),
    "progress": "An empty batch with requests that would fit is a deadlock.",
    "liveness": (
        "Requests that preempt each other compute the same prompts again and again, at full load, without a token."
    ),
    "admission_order": (
        "Requests that overtake by accident starve others, and only in the tail latencies of a loaded service."
    ),
    "ending": (
        "A request that ends too early is cut off; one that goes on past its end burns its budget, and answers "
        "what nobody asked."
    ),
    "source_stable": (
        "A copy that reads while somebody writes stores bytes of two requests under one key. Nothing fails; the wrong "
        "text comes later, when that key is hit."
    ),
    "transfer_isolation": (
        "A block that is freed while it is still being copied is the next request's. Without a fence the copy takes "
        "along what that request writes, or overwrites it."
    ),
    "target_owned": (
        "A load that is still running writes into its target whoever has it by then. An abort that frees the target "
        "early corrupts the next request that gets it."
    ),
    "load_before_read": "A hit that is used before its bytes have arrived is computed from what stood there before.",
    "failure_visible": (
        "Copies fail: a full disk, a lost peer, a time-out. Taken for a success, a failure is served as a hit from "
        "then on."
    ),
    "backed": (
        "Between the promise of a hit and its load the tier goes on evicting. What is not pinned is gone, and the "
        "load reads another request's page."
    ),
    "tier_accounting": (
        "A tier that loses a unit with every failure is empty after a day. One that frees a unit twice gives it to two "
        "blocks."
    ),
    "transfer_progress": (
        "Requests that are promoted again and again, and never run, keep the tier busy at full bandwidth while "
        "nothing is served."
    ),
    "quiescence": (
        "What is pinned when everything has ended stays pinned for good. A server that looks healthy has a little less "
        "memory after each failure."
    ),
    "every_request_ends": "A request that never ends holds its slots, and its connection, for good.",
    "answers_match": (
        "The tokens that a request gets must not depend on what else is in the batch, on hits or on preemption."
    ),
    "slot_mapping": (
        "The slot mapping is where a kernel writes. One entry off, and a token's KV lands in another request."
    ),
    "reach": (
        "A run that never evicted says nothing about eviction. Until every goal was reached, a run without "
        "findings is inconclusive."
    ),
}
