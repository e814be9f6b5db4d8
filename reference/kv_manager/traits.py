"""Traits of kv_manager."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from kvlockstep.reference.kv.transfers import Fetching, Loading
from kvlockstep.reference.kv_manager.groups.contract import Admitted, Group, Step
from kvlockstep.reference.traits import both, required, smaller, trait


@dataclass(frozen=True)
class Traits:
    """Traits that a kv_manager target declares, as attributes of the same names."""

    block_size: int = required("Tokens of a block", least=1)
    total: int = required("Slots of the pool, without null blocks", least=1)
    max_length: int | None = trait(
        None,
        "Longest request in tokens, None for the pool. No table has more blocks than that many tokens take: the "
        "worker's row has no room for more.",
        least=1,
        common=smaller,
    )
    chunk: bool = trait(False, "A prompt may be computed in chunks.", common=both)
    chunk_align: int = trait(1, "Each chunk but the last is a multiple of this.", least=1, common=math.lcm)
    tokens_per_decode: int | None = trait(
        None,
        "Most tokens of one decode, drafts included; None for any number. An engine without drafts says 1.",
        least=1,
        common=smaller,
    )
    extra_key: bool = trait(False, "`admit` looks at `extra_key`: adapter, salt.", common=both)
    whole_prompt: bool = trait(False, "`admit` takes slots for the whole prompt at once.")
    early_publish: bool = trait(
        False, "Blocks are published before they are computed. They can be hit from the admission or reservation on."
    )
    output_reserve: int = trait(
        0,
        "Slots kept for the output at admission. They are added to the prompt of each request that the step admits, "
        "before rounding up to blocks.",
    )
    lookahead_blocks: int = trait(
        0,
        "Blocks of a table beyond `max_length`, kept ahead on purpose. The worker's rows have room for them.",
    )
    can_withdraw: bool = trait(False, "There is `withdraw(rid)`.", method="withdraw", common=both)
    can_fork: bool = trait(False, "There is `fork(rid, child)`.", method="fork", common=both)
    can_reset: bool = trait(False, "There is `reset()`.", method="reset", common=both)
    can_evict_all: bool = trait(False, "There is `evict_all()`.", method="evict_all", common=both)
    hash_trust: str = trait(
        "none",
        'What verifies a hit beside its hash: "none", "tokens" or "tokens+parent". Only reports show it: the judge '
        "looks at what a hit reads.",
    )
    copies_at_admit: bool = trait(False, "`admit` can make copies due: reuse by copying.")
    copies_at_reserve: bool = trait(False, "`reserve` can make copies due: copy-on-write.")
    copies_at_commit: bool = trait(
        False, "`commit` can make copies due: what it publishes is a copy. `copies` is asked behind each commit too."
    )
    prefix_cache: bool = trait(
        True, "False if prefixes are never shared. Otherwise a run without a hit is inconclusive."
    )
    event_listener: Literal["set", "counting"] | None = trait(
        None,
        'There is `events()` for a listener that keeps a "set" of keys, or one "counting" copies. A "set" has equal '
        "blocks once. A counting listener counts stores and removals of each copy of a block. The removal of an "
        "unknown key changes nothing.",
        method="events",
    )
    silent_tiers: bool | Collection[str] = trait(
        False,
        "With `event_listener`, no event speaks of some tiers: True for all, or their names. A hit that is loaded from "
        "them may have any length.",
    )
    late_release: bool = trait(
        False,
        "Slots may be unavailable for a while though no live request holds them; there is `limbo()`.",
        method="limbo",
    )
    groups: tuple[Group, ...] = trait(
        (),
        "Kinds of KV, each with block tables of its own: a `Group` for each. One full group is the same as none. With "
        "groups, pools are counted in blocks.",
        types=(Group, Step),
    )
    pools: Mapping[str, int] | None = trait(
        None,
        "The blocks of each pool, if the groups have several. None for one pool of `total` slots, in blocks of the "
        "first group.",
        least=1,
    )
    frees_window: bool = trait(False, "A commit frees the blocks that no window reaches any more.")
    cuts_chunks: bool = trait(
        False,
        "`admit` and `reserve` may take fewer tokens than asked. `admit` returns `Admitted(cached, n)` then, `reserve` "
        "a number.",
        types=(Admitted,),
    )
    defers_twins: bool = trait(
        False, "`admit` may refuse a request while a request of the same step begins with the same token."
    )
    tiers: Mapping[str, int] | None = trait(
        None,
        "{name: units} of the tiers that KV is stored to and that an admission may load from. None without transfers. "
        "A unit holds one block, of any group.",
        least=1,
        method=("ready", "transfers", "waits", "complete", "poll", "tier"),
        types=(Loading,),
    )
    fails: Literal["stores", "loads", "any"] | Mapping[str, Literal["stores", "loads", "any"]] | None = trait(
        None,
        'Which transfers may fail: "stores", "loads", "any" or None; {tier: which} where not every tier fails. A load '
        "that fails may have written its first blocks. A move is a load from one tier and a store to the other: it may "
        "fail if either may.",
    )
    loses: bool | Collection[str] = trait(
        False,
        "A tier may lose a unit that a hit may find, and nobody is told: True for all, or the names of those that do. "
        "What reads it fails there; `fails` has loads.",
    )
    moves: bool = trait(
        False,
        "A transfer may be a move from one of several tiers to another one.",
        types=(Fetching,),
    )
    patience: int | None = trait(
        None,
        "How often in all a request may be told to wait for moves that are for it; None: no limit, it waits for their "
        "end. Counted are the answers `Fetching` before it is admitted. 0 if it never waits. Only with `moves`.",
    )
    reset_in_flight: bool = trait(False, "`reset` may come with transfers in flight.")
    mixed_hits: bool = trait(
        False,
        "A group may be loaded for positions at which the pool serves another one. If False, a load begins where the "
        "hit of all groups in the pool ends. Only with groups and tiers.",
    )
