"""The contract of kv_manager: its methods, events and traits."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.traits import both, required, smaller, trait

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "Event", "KVManagerOptional", "KVManagerTarget", "Traits"]


@runtime_checkable
class KVManagerTarget(Protocol):
    """Factory `make(blocks, block_size)`. A whole engine as its scheduler sees it.

    Optional methods are those of `KVManagerOptional`, each announced by a trait; the traits are the attributes of
    `Traits`.
    """

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Finds and pins the cached prefix, and takes slots for the next `n` tokens behind it, or for fewer if the
        prompt ends before: `n` is chosen before the hit is known.
        Returns the number of cached tokens, 0 if none are, less than all of them. Returns None to refuse; then nothing
        is held. With `tiers` it may return `Loading(cached)`: part of these tokens is still to be loaded. With `moves`
        it may return `Fetching()`: nothing is held either, and the request asks again.
        After `preempt` the same id comes back with all the tokens known so far.
        """

    def append(self, rid: str, token: int) -> None:
        """One more token of the request is known; its KV is not computed yet."""

    def reserve(self, rid: str, n: int) -> bool:
        """Takes slots for the next `n` tokens. Returns False to refuse; then nothing has changed."""

    def copies(self) -> list[tuple[int, int]]:
        """Returns the slot copies (source, target) that this step needs; called once, before launch."""

    def launch(self) -> None:
        """Allocates for the whole batch, if the engine does that."""

    def slots(self, rid: str) -> list[int]:
        """Returns the slots of positions 0, 1, ... that are allocated now. Slot = block * block_size + offset.
        Changes nothing.
        """

    def commit(self, rid: str, n: int) -> None:
        """`n` reserved tokens are written and accepted. Full blocks may be published now."""

    def finish(self, rid: str) -> None:
        """The request ends and gives its slots back. You decide what stays cached."""

    def abort(self, rid: str) -> None:
        """The request ends in whatever phase it is."""

    def preempt(self, rid: str) -> None:
        """The request gives its slots back, to be admitted again under the same id."""

    def avail(self) -> int:
        """Returns the number of free and evictable slots. Changes nothing."""

    def free_now(self) -> int:
        """Returns the number of free slots, without eviction. Changes nothing."""

    def free_slots(self) -> Iterable[int] | None:
        """Returns the slots that are free and cannot be hit any more, or None. Makes traces much shorter."""


class KVManagerOptional(Protocol):
    """Methods of a kv_manager that may be left out. A target that has one announces it with a trait."""

    def withdraw(self, rid: str) -> None:
        """Takes back what this step scheduled for the request. If that was its admission, the request ends."""

    def fork(self, rid: str, child: str) -> Iterable[tuple[int, int]] | None:
        """The child starts with all tokens and all computed KV of its parent. Returns the slot copies (source, target)
        to be made at once. Returns None to refuse; then nothing has changed.
        """

    def reset(self) -> None:
        """Forgets everything, live and preempted requests too."""

    def evict_all(self) -> None:
        """Drops everything that is cached and that no live request holds."""

    def limbo(self) -> int:
        """Returns the number of slots that no live request holds and that cannot be taken yet, such as those of blocks
        that are being copied elsewhere. `avail` may count them or not. Changes nothing.
        """

    def ready(self, rid: str) -> int | None:
        """Returns how many tokens of a request whose admission loads are computed: as many as were promised, or fewer
        if something has failed. None while it still waits.
        """

    def transfers(self) -> Sequence[Transfer]:
        """The transfers that were submitted since the last call. Asked after every operation."""

    def waits(self) -> Collection[Hashable]:
        """The ids of transfers that the worker waits for before this step copies and writes. Asked after `launch`."""

    def complete(self, id: Hashable, ok: bool) -> None:
        """The transfer has ended; if not `ok`, its targets hold garbage. The next `poll` takes it in at the latest."""

    def poll(self) -> None:
        """Takes in the transfers that have ended."""

    def tier(self, name: str) -> TierUnits:
        """What became of each unit of a tier. Changes nothing."""

    def events(self) -> Iterable[Event]:
        """Returns the changes to what can be hit since the last call, in order."""


@dataclass(frozen=True)
class Traits:
    """Traits that a kv_manager target declares, as attributes of the same names."""

    block_size: int = required("Tokens of a block", least=1)
    total: int = required("Slots of the pool, without null blocks")
    max_length: int | None = trait(
        None,
        "Longest request in tokens, None for the pool. No table has more blocks than that many tokens take: the "
        "worker's row has no room for more.",
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
    late_release: bool = trait(
        False,
        "Slots may be unavailable for a while though no live request holds them; there is `limbo()`.",
        method="limbo",
    )
    groups: tuple[Group, ...] = trait(
        (),
        "Kinds of KV, each with block tables of its own: a `Group` for each. One full group is the same as none. With "
        "groups, pools are counted in blocks.",
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
    )
    defers_twins: bool = trait(
        False, "`admit` may refuse a request while a request of the same step begins with the same token."
    )
    tiers: Mapping[str, int] | None = trait(
        None,
        "{name: units} of the tiers that KV is stored to and that an admission may load from. None without transfers. "
        "A unit holds one block.",
        least=1,
        method=("ready", "transfers", "waits", "complete", "poll", "tier"),
    )
    fails: Literal["stores", "loads", "any"] | Mapping[str, Literal["stores", "loads", "any"]] | None = trait(
        None,
        "Which transfers may fail, or {tier: which} where not every tier fails. A load that fails may have written its "
        "first blocks. A move is a load from one tier and a store to the other: it may fail if either may.",
    )
    loses: bool | Collection[str] = trait(
        False,
        "A tier may lose a unit that a hit may find, and nobody is told: True for all, or the names of those that do. "
        "What reads it fails there; `fails` has loads.",
    )
    moves: bool = trait(
        False,
        "A transfer may be a move from one of several tiers to another one.",
    )
    patience: int | None = trait(
        None,
        "With `moves`. How often a request has to wait for a move that is for it: admissions answered with `Fetching`. "
        "0 if it never waits, None if it waits for the end.",
    )
    reset_in_flight: bool = trait(False, "`reset` may come with transfers in flight.")
