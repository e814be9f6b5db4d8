"""The contract of kv_scheduler: a scheduler together with the KV manager that it drives."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_scheduler.batch import END_TOKEN, NO_DRAFTS, PAD_DRAFT, Batch, Item
from kvlockstep.reference.traits import required, trait

__all__ = [
    "END_TOKEN",
    "NO_DRAFTS",
    "PAD_DRAFT",
    "Batch",
    "Item",
    "KVSchedulerOptional",
    "KVSchedulerTarget",
    "SchedulerTraits",
]


@runtime_checkable
class KVSchedulerTarget(Protocol):
    """Factory `make(blocks, block_size, budget, running)`: at most `budget` tokens and `running` requests a batch.

    Slots are integers, the block of a slot is slot // block_size; `avail` and `total` count slots. A request ends by
    END_TOKEN or by its `max_tokens`-th sampled token; together with its prompt they fit into the pool.

    `schedule` is called with at most `overlap` - 1 batches in flight, and its batch is launched at once: it writes
    its KV whatever comes after. `update` brings the sampled tokens of the oldest batch, even of requests that ended or
    were aborted meanwhile, and returns the requests that have ended now. `abort` comes when the trait `aborts` says.
    `queues` names every queue with the requests in it. `slots` are those a request holds now; none if it waits. An
    ended request may hold its slots, and stand in a queue, until its last batch is back. `free_slots` as in kv_manager.

    With `drafts`, `draft(rid, tokens)` offers guesses behind a request's last token, for its next batch, and `update`
    has a second argument: how many drafts of each request were right. The sampled token follows them. If batches
    overlap as well, the drafts are the device's. Then `draft` comes right after the launch of the batch that samples
    the token before them, and `schedule` has an argument: for each batch in flight, the oldest first, what `update`
    will say about its drafts, so that the items begin where the device does. Both inform the worker; the scheduler
    must decide without them.
    """

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        """A request arrives. It ends by END_TOKEN or by its `max_tokens`-th sampled token."""

    def schedule(self) -> Batch:
        """Decides the next batch, which is launched at once."""

    def update(self, sampled: Mapping[str, int]) -> Collection[str]:
        """Receives the sampled tokens of the oldest batch in flight; returns the requests that have ended now."""

    def abort(self, rid: str) -> None:
        """The request ends, even with a batch in flight."""

    def queues(self) -> Mapping[str, Sequence[str]]:
        """Returns every queue by its name, with the requests in it. Changes nothing."""

    def slots(self, rid: str) -> list[int]:
        """Returns the slots that the request holds now; none if it waits. Changes nothing."""

    def avail(self) -> int:
        """Returns the number of free and evictable slots. Changes nothing."""

    def free_slots(self) -> Iterable[int] | None:
        """Returns the slots that are free and cannot be hit any more, or None."""


class KVSchedulerOptional(Protocol):
    """Methods that may be left out. A target that has one announces it with a trait."""

    def reset(self) -> None:
        """Drops everything that is cached; live requests wait again."""

    def draft(self, rid: str, tokens: list[int]) -> None:
        """Offers guesses behind the last token of a request, for its next batch."""

    def transfers(self) -> Sequence[Transfer]:
        """The transfers that were submitted since the last call. Asked after every operation."""

    def waits(self) -> Collection[Hashable]:
        """The ids of transfers that the worker waits for before the batch that `schedule` just decided writes."""

    def complete(self, id: Hashable, ok: bool) -> None:
        """The transfer has ended; if not `ok`, its targets hold garbage. Taken in by the next `poll` at the latest."""

    def poll(self) -> None:
        """Takes in what has completed and submits what is due, with nothing to compute."""

    def tier(self, name: str) -> TierUnits:
        """What became of each unit of a tier. Changes nothing."""

    def looking_up(self) -> Collection[str]:
        """The requests that this `schedule` has passed over, since a tier was asked for what it has of them.

        Asked right after it. Changes nothing.
        """

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[int | None]:
        """Another instance has computed these tokens. Returns for each full block the peer's unit that has it now.

        None for a block that the tier does not take, or that is on its way there. With groups a list for each group: of
        a window the blocks out of reach need not be taken, of a state those at which nobody has saved one.
        """

    def events(self) -> Iterable[Event]:
        """Returns the changes to what can be hit since the last call, in order. Those of a tier may be left out."""

    def limbo(self) -> int:
        """Slots that no live request holds and that are not available yet. Changes nothing."""


@dataclass(frozen=True)
class SchedulerTraits:
    """Traits that a kv_scheduler target declares, as attributes of the same names."""

    block_size: int = required("Tokens of a block", least=1)
    total: int = required("Slots of the pool, without null blocks")
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
        "Which transfers may fail, or {tier: which} where not every tier fails. A load that fails may have written its "
        "first blocks. A move is a load from one tier and a store to the other: it may fail if either may.",
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
        "With `moves`. How often a request has to wait for a move that is for it: batches that stay empty. 0 if it "
        "never waits, None if it waits for the end.",
    )
    looks_up: bool = trait(
        False,
        "A request may be passed over while a tier is asked for what it has of it; there is `looking_up()`. It may be "
        "overtaken meanwhile, and is no reason for an empty batch.",
        method="looking_up",
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
        "`medium` names the tier that has a block, None is the pool; a tier may be left out altogether.",
        method="events",
    )
    groups: tuple[Group, ...] = trait(
        (),
        "Kinds of KV, each with block tables of its own: a `Group` for each. None, or one full group, is what a "
        "kv_scheduler has without this trait. With groups, pools are counted in blocks, and `max_length` says how long "
        "a request may be that fits alone.",
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
