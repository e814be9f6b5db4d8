"""Laws of kv_scheduler: those of the KV memory, taken over from kv_manager, and those of a schedule.

Those of transfers are in properties/transfers.py.

Each looks at plain values; the judge in models/kv_scheduler/judge.py calls it at the point that its statement names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kvlockstep.properties import transfers
from kvlockstep.properties.kv_manager import laws as kv_manager
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, counted, law, laws_of

CONTRACT = "kv_scheduler"

prefix_soundness = replace(kv_manager.prefix_soundness, contract=CONTRACT)
write_isolation = replace(kv_manager.write_isolation, contract=CONTRACT)
content_equality = replace(kv_manager.content_equality, contract=CONTRACT)
no_aliasing = replace(kv_manager.no_aliasing, contract=CONTRACT)
eviction_safety = replace(kv_manager.eviction_safety, contract=CONTRACT)
no_double_free = replace(kv_manager.no_double_free, contract=CONTRACT)
accounting = replace(kv_manager.accounting, contract=CONTRACT)
leak_freedom = replace(kv_manager.leak_freedom, contract=CONTRACT)
conservation = replace(kv_manager.conservation, contract=CONTRACT)
table_limit = replace(kv_manager.table_limit, contract=CONTRACT)
reset_complete = replace(kv_manager.reset_complete, contract=CONTRACT)


@law(CONTRACT, answers=("sglang-jax#1400",))
def live_items(rid: str, live: Collection[str], earlier: Collection[str]) -> str | None:
    """A batch names a request at most once, and only live ones."""
    if rid not in live:
        return f"the batch has {rid}, which is not live"
    return f"the batch has {rid} twice" if rid in earlier else None


@law(CONTRACT, answers=("imp#536", "imp#537"))
def continuity(start: int, stop: int, computed: int, known: int, fresh: bool) -> str | None:
    """A request goes on where it stopped; one that held nothing starts anywhere before its last known token.

    It computes at least one token, and none that is neither known nor a draft.
    """
    if not 0 <= start < stop <= known:
        return f"computes positions {start} to {stop} of {counted(known, 'known token')}"
    if fresh or start == computed:
        return None
    return f"goes on at position {start}, but {computed} are computed"


@law(CONTRACT)
def input_tokens(fed: Sequence[int], known: Sequence[int], start: int) -> str | None:
    """The ids that an item feeds are the request's own tokens, its prompt and what was sampled for it."""
    expected = list(known[start : start + len(fed)])
    return None if list(fed) == expected else f"feeds {list(fed)} at position {start}, its tokens are {expected}"


@law(CONTRACT)
def sampling(samples: bool, stop: int, known: int, drafts: int = 0) -> str | None:
    """A token is sampled exactly where the last known token has been computed; drafts follow that token alone."""
    if samples == (stop == known) and (samples or not drafts):
        return None
    return f"{'samples' if samples else 'samples nothing'} after {stop} of {counted(known, 'known token')}"


@law(CONTRACT, answers=("TensorRT-LLM#13320", "sglang#31616"))
def coverage(slots: int, stop: int) -> str | None:
    """An item has exactly one slot for every position that it reads or writes."""
    return None if slots == stop else f"has {counted(slots, 'slot')} for {counted(stop, 'position')}"


@law(CONTRACT, answers=("vllm#46595", "LMCache#1361", "vllm-rbln#676"))
def held_tables(worker: Sequence[int], held: Sequence[int]) -> str | None:
    """The slots that the worker uses are those that the scheduler holds for the request."""
    if list(worker) == list(held[: len(worker)]):
        return None
    at = next((i for i, pair in enumerate(zip(worker, held, strict=False)) if pair[0] != pair[1]), len(held))
    own = held[at] if at < len(held) else "none"
    return f"has position {at} in slot {worker[at]} for the worker, in {own} by its own table"


@law(CONTRACT)
def batch_limits(tokens: int, requests: int, budget: int, running: int) -> str | None:
    """A batch stays within the budget of tokens and of requests."""
    if tokens <= budget and requests <= running:
        return None
    batch = f"{counted(tokens, 'token')} of {counted(requests, 'request')} in one batch"
    return f"{batch}, allowed are {budget} of {running}"


@law(CONTRACT, answers=("sglang#21632", "sglang-jax#1400", "xinfer#405"))
def one_queue(queues: Mapping[str, Sequence[str]], live: Collection[str]) -> str | None:
    """A live request stands in exactly one queue, once; nobody else stands in any."""
    places: dict[str, list[str]] = {rid: [] for rid in live}
    for queue, rids in queues.items():
        for rid in rids:
            places.setdefault(rid, []).append(queue)
    for rid, found in places.items():
        if rid not in live:
            return f"{rid} has ended, and stands in {found[0]}"
        if len(found) != 1:
            return f"{rid} stands in {' and '.join(found) or 'no queue'}"
    return None


@law(CONTRACT, needs=("preempts",))
def preemption_frees(preempted: Sequence[str], live: Collection[str], slots: Sequence[int]) -> str | None:
    """A preempted request is live, and holds nothing."""
    for rid in preempted:
        if rid not in live:
            return f"{rid} was preempted, and is not live"
    return f"{preempted[-1]} was preempted, and holds {counted(len(slots), 'slot')}" if slots else None


@law(CONTRACT, answers=("vllm#11565", "FastDeploy#5544"))
def progress(items: int, live: Sequence[str]) -> str | None:
    """With live requests and nothing in flight something is scheduled: each of them fits into the pool alone."""
    return f"an empty batch, though {', '.join(live)} wait for nothing" if live and not items else None


@law(CONTRACT)
def liveness(batches: int, limit: int) -> str | None:
    """Batches that compute come to a token: without new requests one is sampled before all have been computed anew."""
    return f"{counted(batches, 'batch')}, and not a token sampled" if batches > limit else None


@law(CONTRACT, needs=("policy",))
def admission_order(rid: str, before: Sequence[str], policy: str) -> str | None:
    """Nobody is admitted while a request waits that the policy puts before it."""
    return f"{rid} was admitted, though by {policy} {', '.join(before)} come first" if before else None


@law(CONTRACT)
def ending(answered: Collection[str], expected: Collection[str]) -> str | None:
    """A request ends with the token that ends it, and not before."""
    if set(answered) == set(expected) and len(answered) == len(expected):
        return None
    return f"update answered that {sorted(answered)} have ended, these have: {sorted(expected)}"


@law(CONTRACT, answers=("FastDeploy#5544",))
def every_request_ends(left: Sequence[str], batches: int) -> str | None:
    """Without new requests every request ends."""
    if not left:
        return None
    return f"after {counted(batches, 'batch')} {', '.join(left)} {'has' if len(left) == 1 else 'have'} not ended"


LAWS = (*laws_of(globals()), *laws_of(vars(transfers)), ERROR_CONTRACT, TERMINATION)
