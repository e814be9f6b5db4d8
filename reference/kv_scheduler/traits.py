"""Traits of kv_scheduler."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.traits import required, trait


@dataclass(frozen=True)
class SchedulerTraits:
    """Traits that a kv_scheduler target declares, as attributes of the same names."""

    block_size: int = required("Tokens of a block", least=1)
    total: int = required("Slots of the pool, without null blocks", least=1)
    overlap: int = trait(1, "Batches that may be in flight.", least=1)
    policy: Literal["fcfs", "priority"] | None = trait(
        None,
        '"fcfs" or "priority" if no request is admitted before an older one that waits. With "priority" the smaller '
        "number goes first. None promises no order.",
    )
    preempts: bool = trait(True, "False if it never takes slots back.")
    preempts_in_flight: bool = trait(True, "False if it never takes slots back from a request with a batch in flight.")
    mixes: bool = trait(True, "False if prompts and decodes never share a batch.")
    prefix_cache: bool = trait(True, "False if prefixes are never shared.")
    extra_key: bool = trait(False, "`add` looks at `extra_key`: adapter, salt.")
    can_reset: bool = trait(
        False, "There is `reset()`. It drops everything that is cached; live requests wait again.", method="reset"
    )
    max_length: int | None = trait(
        None,
        "Longest request in tokens with its output, None for the pool. No table has more blocks than a request of that "
        "length takes, plus what a batch may compute beyond its end: its drafts, and tokens in flight when it ends.",
        least=1,
    )
    lookahead_blocks: int = trait(0, "Blocks of a table beyond `max_length`, kept ahead on purpose.")
    drafts: int = trait(
        0,
        "Most drafts of a request in a batch. There is `draft(rid, tokens)`, and `update` has a second argument. With "
        "`overlap` > 1 `schedule` has an argument, too.",
        method="draft",
    )
    aborts: Literal["any", "before_schedule"] | None = trait(
        "any",
        'When `abort` may come: at "any" time, "before_schedule", or None for never. "before_schedule" means only '
        "when a batch could be scheduled next, for an engine that reads its messages there.",
        method="abort",
    )
    late_aborts: bool = trait(
        False,
        "An aborted request that has started may run on until its next token is back. It is gone when it stands in no "
        "queue.",
    )
    drops_late_tokens: bool = trait(
        False, "A token in flight is dropped if its request is preempted. It is sampled again."
    )
    preempted_last: bool = trait(
        False, "A preempted request waits behind all others of its priority. For `policy` it has arrived again."
    )
    tiers: Mapping[str, int] | None = trait(
        None,
        "{name: units} of the tiers that KV is stored to and loaded from. None without transfers. A unit holds one "
        "block, of any group.",
        least=1,
        method=("transfers", "waits", "complete", "poll", "tier"),
    )
    fails: Literal["stores", "loads", "any"] | Mapping[str, Literal["stores", "loads", "any"]] | None = trait(
        None,
        'Which transfers may fail: "stores", "loads", "any" or None; {tier: which} where not every tier fails. A load '
        "that fails may have written its first blocks. A move is a load from one tier and a store to the other: it may "
        "fail if either may.",
    )
    ordered: bool = trait(
        False, "The device runs loads behind the batches in flight. If False, a load may write at once."
    )
    failed_loads: Literal["recompute", "end"] = trait(
        "recompute",
        'What becomes of a request whose load has failed: "recompute" if it computes what is missing, "end" if it '
        "ends. Then `update` or `poll` returns it, at the latest the next `poll`.",
    )
    partial_loads: bool = trait(
        False,
        "Of a load that fails the blocks that were written count: `complete` has a third argument, how many of the "
        "first ones these are.",
    )
    in_steps: bool = trait(
        False,
        "Transfers are submitted and heard of in steps only. `poll` is a step without a batch, and comes with no batch "
        "in flight. What is decided in between is submitted by the next step.",
    )
    peer: str | None = trait(
        None,
        "Name of a tier that others fill, too: another instance, or a storage that several share. There is "
        "`offer(tokens, extra_key)`.",
        method="offer",
    )
    loses: bool | Collection[str] = trait(
        False,
        "A tier may lose a unit that a hit may find, and nobody is told: True for all, or the names of those that do. "
        "A load or a move that reads it fails there; `fails` has loads.",
    )
    durable: bool = trait(
        False,
        "What a request has computed in full blocks is stored when it ends by itself: submitted by the next batch or "
        "`poll`, with `in_steps` by the second one. With groups it is what its next token would read, see `owed`.",
    )
    loaded_first: bool = trait(
        False,
        "A request that holds what was loaded for it starts before every one that holds nothing, whatever `policy` "
        "says. Among those that hold something, and among the others, the policy decides.",
    )
    moves: bool = trait(
        False,
        "A transfer may be a move from one of several tiers to another one.",
    )
    patience: int | None = trait(
        None,
        "How often in all a request may have to wait for moves that are for it; None: no limit, it waits for their "
        "end. Counted are the batches that stay empty before it starts. 0 if it never waits. Only with `moves`.",
    )
    looks_up: bool = trait(
        False,
        "A request may be passed over while a tier is asked for what it has of it; there is `looking_up()`. It may be "
        "overtaken meanwhile, and is no reason for an empty batch.",
        method="looking_up",
    )
    buffered: bool = trait(
        False,
        "What is fetched for a request stays in units of its own until it starts. So a move may also keep those "
        "waiting whom `looking_up` names: they need such units. Only with `looks_up` and `moves`.",
    )
    reset_in_flight: bool = trait(False, "`reset` may come with transfers in flight.")
    late_release: bool = trait(
        False,
        "Slots may be unavailable for a while though no live request holds them; there is `limbo()`.",
        method="limbo",
    )
    event_listener: Literal["set", "counting"] | None = trait(
        None,
        'There is `events()` for a listener that keeps a "set" of keys, or one "counting" copies, as in kv_manager. '
        "`medium` names the tier that has a block, None is the pool.",
        method="events",
    )
    silent_tiers: bool | Collection[str] = trait(
        False,
        "With `event_listener`, no event speaks of some tiers: True for all, or their names. A hit that is loaded from "
        "them may have any length.",
    )
    groups: tuple[Group, ...] = trait(
        (),
        "Kinds of KV, each with block tables of its own: a `Group` for each. One full group is the same as none. With "
        "groups, pools are counted in blocks, and `max_length` says how long a request may be that fits alone.",
        types=(Group,),
    )
    pools: Mapping[str, int] | None = trait(
        None,
        "The blocks of each pool, if the groups have several. None for one pool of `total` slots, in blocks of the "
        "first group.",
        least=1,
    )
    mixed_hits: bool = trait(
        False,
        "A group may be loaded for positions at which the pool serves another one. If False, a load begins where the "
        "hit of all groups in the pool ends.",
    )
    states_in_place: bool = trait(
        False,
        "A request keeps one block for its state. What it hits is copied there first, and what it publishes is copied "
        "from there or saved beside it.",
    )
    frees_window: bool = trait(
        False, "Blocks that no window reaches any more are free when no batch of the request is in flight."
    )
