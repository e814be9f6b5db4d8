"""Reasons why each law matters: what a user of an engine sees when it does not hold."""

from __future__ import annotations

WHY = {
    "no_double_free": (
        "A slot that is freed twice is handed out twice. Two requests then write into one another's KV, and both "
        "continue with text that looks plausible and is wrong. A counter that is decremented twice also frees "
        "slots that are held."
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
        "A deterministic contract leaves no choice, so any difference from the reference is a defect, even if no "
        "other law names it."
    ),
    "error_contract": (
        "An engine can handle the errors and the answers that it expects. Anything else ends the scheduler's loop, and "
        "with it every request in flight."
    ),
    "termination": (
        "An eviction loop may find nothing to evict, or a retry may change nothing. Then the engine hangs without "
        "an error, and every request waits."
    ),
    "structure": (
        "A lookup walks from the shortest prefix on. An entry whose shorter prefixes are missing is never found, "
        "and never evicted: it holds its memory for good."
    ),
    "eviction_safety": (
        "If a block is evicted while a request still reads it, another request gets it. The first request "
        "continues over memory that is being rewritten."
    ),
    "eviction_order": (
        "A prefix cache that evicts hot blocks and keeps cold ones is pure overhead. Hit rates fall, and nothing "
        "reports an error."
    ),
    "write_isolation": (
        "Shared blocks are the point of a prefix cache and of forks. A write into a block that another request "
        "reads, without a copy first, changes the other one's context."
    ),
    "content_equality": (
        "A request that reads other KV than a cold run would have written continues another text than its own. "
        "In the end every other law protects this one."
    ),
    "gather_exact": (
        "Attention reads what gather hands it. A wrong slot, layer or order is a wrong answer, even though "
        "everything was stored right."
    ),
    "prefix_soundness": (
        "If a key lacks the parent, the adapter or the salt, a request hits a prefix that is not its own, and one "
        "user gets the context of another. Keys that collide do the same."
    ),
    "prefix_completeness": (
        "A cached prefix that is not found is computed again. That costs exactly what the cache was built to save, "
        "and shows only as a hit rate that nobody questions."
    ),
    "refcount_exact": (
        "With one reference too few, a block is evicted or freed under its reader. With one too many, it is never "
        "freed. A wrong count surfaces hours later, somewhere else."
    ),
    "reset_complete": (
        "The cache is reset when weights are reloaded or sessions end. An entry that survives belongs to another "
        "model or to another user."
    ),
    "graph_contract": (
        "A captured graph replays fixed addresses. An allocation inside a capture happens once and is never "
        "repeated. A graph that reads the tables of its capture computes on yesterday's tables."
    ),
    "no_stale_graph": (
        "A graph that was captured over a table that has moved reads freed memory, with no error from the device."
    ),
    "capture_refuses": (
        "A host operation during a capture is not part of the graph. If it is accepted, host and device disagree "
        "from then on."
    ),
    "padding_isolation": (
        "Graphs come in fixed sizes, and the unused lanes run too. If they write, they write into some request's KV."
    ),
    "stream_order": (
        "Memory that one stream frees while another still reads it is reused too early. It depends on timing, so "
        "tests on an idle machine pass."
    ),
    "event_consistency": (
        "A router follows the events and sends a request to the engine that has its prefix. If an event is missing, "
        "it sends the request where everything is computed again, or to a cache that is long gone. Both show only "
        "as a hit rate."
    ),
    "index_exact": (
        "A router that believes in blocks that are gone sends requests where everything is computed again. One that "
        "does not know what is cached spreads one user's requests over all workers. Both show only as a hit rate."
    ),
    "index_safe": (
        "Events are lost whenever a queue overflows. What an index then makes up, or keeps although its removal was "
        "heard, draws requests to a worker that has nothing of them."
    ),
    "clear_heard": (
        "Workers clear their caches when weights change, and leave when they are scaled down. An index that goes on "
        "believing in them sends a whole service's requests to the coldest worker, or to one that is not there."
    ),
    "parent_first": (
        "Blocks whose parent was lost belong somewhere that the index cannot know. Put under the root or under "
        "another worker's block, they are found by prompts that never had them."
    ),
    "duplicate_harmless": (
        "Events are replayed after a reconnection, and the replay overlaps what was heard. A store that is applied "
        "twice brings back what was removed in between; a removal takes what was stored again."
    ),
    "worker_isolated": (
        "One worker's eviction or restart must not blind the router for the others. In a service of many workers one "
        "of them restarts all the time."
    ),
    "snapshot_exact": (
        "A new router starts from the snapshot of another. What the snapshot leaves out is computed again for every "
        "user; what it adds misroutes them."
    ),
    "gap_once": (
        "A router that does not notice a gap works with a wrong index for good. One that sees it again with every "
        "event asks for whole caches again and again, and never catches up."
    ),
    "hit_bounds": (
        "If a hit covers all tokens, nothing is computed and there is no logit to sample from. A negative or huge "
        "hit indexes outside the table."
    ),
    "leak_freedom": (
        "An idle engine that has less memory than at its start has less every hour. It ends in refusals, or in a "
        "restart at night."
    ),
    "free_count": (
        "More free than available slots mean that a counter is wrong. An allocator that trusts it takes blocks that "
        "are not there."
    ),
    "eviction_complete": "Slots that an emptied cache keeps back are held by nobody, and nobody can use them.",
    "table_limit": (
        "A worker keeps a row for each request, as long as the longest one needs. A block beyond it is written past "
        "the end of the row, into the next one's, or ends the engine with an index error."
    ),
    "state_soundness": (
        "A recurrent state stands for all tokens before it. A request that goes on from another state continues "
        "another text, fluently, and nothing ever reads the KV that would show it."
    ),
    "one_group": (
        "The layers of two groups write their KV into one block in turn. Each overwrites the other's, and both read "
        "what was never theirs."
    ),
    "window_freed": (
        "The memory that windows save is the reason for them. A window that keeps what it has left takes as much as "
        "full attention, and requests wait for room that nobody needs."
    ),
    "coverage": "An accepted request without a slot for every position writes wherever its table happens to point.",
    "purity": (
        "Metrics and schedulers ask at any time. If a question does work, the behaviour depends on who asks, and "
        "a debugger that asks hides the defect that it looks for."
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
        "A token that is sampled before the prompt is complete answers half a question. A token that is never "
        "sampled leaves its user waiting."
    ),
    "held_tables": (
        "The scheduler frees by its table, and the worker writes by its own. Where they differ, the worker writes "
        "into memory that belongs to somebody else."
    ),
    "batch_limits": (
        "Buffers and graphs are sized for the budget. A batch beyond it runs out of memory, or writes past the end."
    ),
    "as_declared": (
        "Worker, buffers and tests rely on what a scheduler says of itself. What never happens is not waited for here: "
        "a wrong declaration hides goals that nobody meets."
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
        "A request that ends too early is cut off. One that runs past its end wastes its budget, and its user gets "
        "text that nobody asked for."
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
    "fetch_ends": (
        "A request that is told to ask again, though nothing is on its way for it, asks for ever. One that waits for a "
        "store without a limit is as slow as the slowest disk."
    ),
    "starvation": (
        "Storage may take seconds, or never answer. One request whose prefix is fetched from there then stops all that "
        "came behind it, on a GPU with nothing to do."
    ),
    "transfer_progress": (
        "Requests that are promoted again and again, and never run, keep the tier busy at full bandwidth while "
        "nothing is served."
    ),
    "load_ends": (
        "An end that nobody takes notice of leaves its request waiting for good, with all its slots, in an engine that "
        "has nothing else to do."
    ),
    "promise_kept": (
        "What was loaded and is not counted is computed again. The copy was for nothing, and a test that looks at the "
        "text never sees it."
    ),
    "every_request_ends": "A request that never ends holds its slots, and its connection, for good.",
    "answers_match": (
        "The tokens that a request gets must not depend on what else is in the batch, on hits or on preemption."
    ),
    "slot_mapping": (
        "The slot mapping says where a kernel writes. If one entry is wrong, a token's KV lands in another request."
    ),
    "padding": (
        "Kernels are launched for more rows than a batch has. If a place behind the batch names a real slot, garbage "
        "overwrites the KV of a live request."
    ),
    "page_order": (
        "Attention finds a token by its page and its place in it. A token that is one place off is read as its "
        "neighbour, and the page's last place is never filled."
    ),
    "repeats": (
        "Two tokens for one slot are a bug of the caller, and a kernel may take either. An element that comes from "
        "neither shows a write that is torn inside of an element."
    ),
    "scale_exact": (
        "A scale that another row has influenced makes a token's KV depend on its batch. Texts then differ from run to "
        "run, and answers get worse where one outlier is in the batch."
    ),
    "codes": (
        "A code that wraps around turns the largest element of a head into its opposite. Outliers carry much of what "
        "attention does."
    ),
    "decoded_within_bound": (
        "One NaN in a row of KV makes every later token of the request NaN. A row that is decoded too far off is a "
        "loss of quality that nobody can see in a log."
    ),
    "visible_when_written": (
        "A chunk that is a hit before its bytes are there is loaded as whatever the unit held before. A key that lacks "
        "what tells two contexts apart is a hit of bytes that were never its own."
    ),
    "failure_visible": (
        "Copies fail: a host pool is full, a disk or a peer is gone. If nobody hears of it, the request that loads the "
        "chunk later reads garbage, far from the cause."
    ),
    "evicted_exact": (
        "The caller plans with what is there. A chunk that is gone without a word ends in a failed load in the middle "
        "of a request; one that is a hit after its eviction is loaded from somebody else's unit."
    ),
    "eviction_bounded": (
        "A tier that empties itself for one chunk never has a hit under load, which is when it is needed, and reports "
        "nothing."
    ),
    "pinned": (
        "A unit that is given away under a copy is read or written by two at once. The copy is right, the unit is "
        "right, and the KV is another request's."
    ),
    "plan_exact": (
        "A chunk that is left out of every store is a hole: all that lies behind it in the sequence can never be hit. "
        "A chunk with two units keeps one of them for good."
    ),
    "refusal_honest": "Each store that is refused with room left is a prompt that is computed again.",
    "backed": (
        "The scheduler has promised the hit to a request, and has not scheduled its tokens. If the load is refused "
        "then, the request has a prefix without KV."
    ),
    "tier_accounting": (
        "A unit that nobody has is lost until a restart; host pools are large, so it takes days to notice. One that is "
        "counted as free while it is held is given away."
    ),
    "delivery": (
        "A producer that frees blocks before they are stored leaves the other instance to compute them again, or to "
        "wait for KV that never comes."
    ),
    "quiescence": (
        "References that outlive their plans pin a little more of the tier with each request. After some hours nothing "
        "can be evicted, every store is refused, and the hit rate falls to nothing."
    ),
    "idempotent": (
        "The finish path, the clean-up and an abort all release. If the second one drops somebody else's reference, "
        "the chunk is evicted under its reader."
    ),
    "whole_or_none": (
        "Storages lose, truncate and mix up. A load that hands out what it found, instead of a miss, turns a lost page "
        "into a wrong answer."
    ),
    "crash_consistency": (
        "A tier on disk outlives its process. A chunk that was half written at the crash is a hit of garbage for every "
        "later process."
    ),
    "reach": (
        "A run that never evicted proves nothing about eviction. Until every goal is met, a run without findings "
        "is inconclusive."
    ),
}
