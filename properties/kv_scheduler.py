"""Laws of kv_scheduler: those of the KV memory, which kv_manager has too, and those of the schedule.

Those of transfers are in properties/transfers.py.

Each looks at plain values; the judge in models/kv_scheduler/judge.py calls it at the point that its statement names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kvlockstep.properties import transfers
from kvlockstep.properties.kv_manager import groups
from kvlockstep.properties.kv_manager import laws as kv_manager
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, agree, counted, law, laws_of

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
event_consistency = replace(kv_manager.event_consistency, contract=CONTRACT)
state_soundness = replace(groups.state_soundness, contract=CONTRACT)
one_group = replace(groups.one_group, contract=CONTRACT)


@law(CONTRACT, answers=("sglang-jax#1400",))
def live_items(rid: str, live: Collection[str], earlier: Collection[str]) -> str | None:
    """A batch has only live requests, each at most once."""
    if rid not in live:
        return f"the batch has {rid}, which is not live"
    return f"the batch has {rid} twice" if rid in earlier else None


@law(CONTRACT, answers=("imp#536", "imp#537"))
def continuity(start: int, stop: int, computed: int, known: int, fresh: bool) -> str | None:
    """A request continues where it stopped; one that held nothing starts anywhere before its last known token.

    It computes at least one token, and only known tokens and drafts.
    """
    if not 0 <= start < stop <= known:
        return f"computes positions {start} to {stop} of {counted(known, 'known token')}"
    if fresh or start == computed:
        return None
    since = ", and no batch has preempted it since" if start < computed else ""
    return f"continues at position {start}, but {computed} {agree(computed, 'are')} computed{since}"


@law(CONTRACT)
def input_tokens(fed: Sequence[int], known: Sequence[int], start: int) -> str | None:
    """An item feeds the request's own tokens: its prompt, and the tokens that were sampled for it."""
    expected = list(known[start : start + len(fed)])
    return None if list(fed) == expected else f"feeds {list(fed)} at position {start}, but its tokens are {expected}"


@law(CONTRACT)
def sampling(samples: bool, stop: int, known: int, drafts: int = 0) -> str | None:
    """An item samples if and only if it computes the last known token; only then may drafts follow."""
    if samples == (stop == known) and (samples or not drafts):
        return None
    return f"{'samples' if samples else 'samples nothing'} after {stop} of {counted(known, 'known token')}"


@law(CONTRACT, answers=("TensorRT-LLM#13320", "sglang#31616"))
def coverage(slots: int, stop: int, where: str = "", when: str = "") -> str | None:
    """An item has exactly one slot for every position that it reads or writes, and between steps a request has one for
    every position that its next batch reads.
    """
    if slots == stop:
        return None
    return f"has {counted(slots, 'slot')}{when and ' ' + when} for {counted(stop, 'position')}{where}"


@law(CONTRACT, answers=("vllm#46595", "LMCache#1361", "vllm-rbln#676"))
def held_tables(worker: Sequence[int | None], held: Sequence[int | None], first: int = 0) -> str | None:
    """The worker uses exactly the slots that the scheduler holds for the request."""
    # Both from position `first` on.
    if list(worker) == list(held[: len(worker)]):
        return None
    at = next((i for i, pair in enumerate(zip(worker, held, strict=False)) if pair[0] != pair[1]), len(held))
    own = held[at] if at < len(held) and held[at] is not None else "none"
    return f"has position {first + at} in slot {worker[at]} for the worker, but in {own} by the scheduler's table"


@law(CONTRACT, needs=("frees_window",))
def window_freed(first: int, block_size: int, table: Mapping[int, int]) -> str | None:
    """With no batch in flight, a request has given back the blocks before everything that it still reads."""
    return groups.window_freed(first, block_size, table)


@law(CONTRACT)
def batch_limits(tokens: int, requests: int, budget: int, running: int) -> str | None:
    """A batch stays within `budget` tokens and `running` requests."""
    if tokens <= budget and requests <= running:
        return None
    batch = f"{counted(tokens, 'token')} of {counted(requests, 'request')} in one batch"
    return f"{batch}, but at most {budget} of {running} {agree(budget, 'are')} allowed"


@law(CONTRACT, answers=("sglang#21632", "sglang-jax#1400", "xinfer#405"))
def one_queue(queues: Mapping[str, Sequence[str]], live: Collection[str]) -> str | None:
    """Each live request stands in exactly one queue, once; no other request stands in any."""
    places: dict[str, list[str]] = {rid: [] for rid in live}
    for queue, rids in queues.items():
        for rid in rids:
            places.setdefault(rid, []).append(queue)
    for rid, found in places.items():
        if rid not in live:
            return f"{rid} has ended, but stands in {found[0]}"
        if len(found) != 1:
            return f"{rid} stands in {' and '.join(found) or 'no queue'}"
    return None


@law(CONTRACT, needs=("preempts",))
def preemption_frees(preempted: Sequence[str], live: Collection[str], slots: Sequence[int]) -> str | None:
    """A preempted request is live and holds no slots."""
    for rid in preempted:
        if rid not in live:
            return f"{rid} was preempted, but is not live"
    return f"{preempted[-1]} was preempted, but holds {counted(len(slots), 'slot')}" if slots else None


@law(CONTRACT, answers=("vllm#11565", "FastDeploy#5544"))
def progress(items: int, live: Sequence[str], limbo: int = 0) -> str | None:
    """With live requests and nothing in flight, a batch is not empty: each request fits into the pool alone."""
    if items or not live:
        return None
    late = f", and limbo={limbo} is no reason" if limbo else ""
    return f"an empty batch, though {', '.join(live)} {agree(len(live), 'wait')} for nothing{late}"


@law(CONTRACT)
def liveness(batches: int, limit: int) -> str | None:
    """Without new requests, the batches sample a token before they could have computed all known tokens again."""
    return f"{counted(batches, 'batch')}, but no token sampled" if batches > limit else None


@law(CONTRACT, needs=("policy",))
def admission_order(rid: str, before: Sequence[str], policy: str) -> str | None:
    """No request is admitted while another waits that the policy puts first."""
    if not before:
        return None
    return f"{rid} was admitted, but by {policy} {', '.join(before)} {agree(len(before), 'come')} first"


@law(CONTRACT)
def as_declared(happened: Mapping[str, str]) -> str | None:
    """Nothing happens of which a trait says that it never does."""
    if not happened:
        return None
    trait, what = next(iter(happened.items()))
    return f"{what}, but the target declares {trait}=False"


@law(CONTRACT)
def ending(answered: Collection[str], expected: Collection[str]) -> str | None:
    """A request ends with the token that ends it, not earlier and not later."""
    if set(answered) == set(expected) and len(answered) == len(expected):
        return None
    return f"update returned {sorted(answered)} as ended, but {sorted(expected)} have ended"


@law(CONTRACT, answers=("FastDeploy#5544",))
def every_request_ends(left: Sequence[str], batches: int) -> str | None:
    """Without new requests, every live request ends."""
    if not left:
        return None
    return f"after {counted(batches, 'batch')} {', '.join(left)} {agree(len(left), 'have')} not ended"


LAWS = (*laws_of(globals()), *laws_of(vars(transfers)), ERROR_CONTRACT, TERMINATION)
