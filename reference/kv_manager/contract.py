"""The contract of kv_manager: what a target must offer, its events and its traits."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class KVManagerTarget(Protocol):
    """Factory `make(blocks, block_size)`. A whole engine as its scheduler sees it.

    Optional methods are those of `KVManagerOptional`, each announced by its trait in `KV_OPTIONAL`; the traits are the
    attributes of `Traits`.
    """

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Finds and pins the cached prefix, takes slots for the next `n` tokens of the prompt.
        Answers how many tokens are cached, less than all of them; None to refuse, and then nothing is held.
        After `preempt` the same id comes back with all the tokens known so far.
        """

    def append(self, rid: str, token: int) -> None:
        """One more token of the request is known; its KV is not computed yet."""

    def reserve(self, rid: str, n: int) -> bool:
        """Takes slots for the next `n` tokens. False to refuse, and then nothing has changed."""

    def copies(self) -> list[tuple[int, int]]:
        """The slot copies (source, target) that this step needs; asked once, before launch."""

    def launch(self) -> None:
        """Allocation for the whole batch, if there is any."""

    def slots(self, rid: str) -> list[int]:
        """The slots of positions 0, 1, ... that are allocated now. Slot = block * block_size + offset.
        Changes nothing.
        """

    def commit(self, rid: str, n: int) -> None:
        """`n` reserved tokens are written and accepted. Full blocks may be published now."""

    def finish(self, rid: str) -> None:
        """The request ends and gives its slots back. What stays cached is your business."""

    def abort(self, rid: str) -> None:
        """The request ends in whatever phase it is."""

    def preempt(self, rid: str) -> None:
        """The request gives its slots back, to be admitted again under the same id."""

    def avail(self) -> int:
        """Free and evictable slots. Changes nothing."""

    def free_now(self) -> int:
        """Free slots, without evicting anything. Changes nothing."""

    def free_slots(self) -> Iterable[int] | None:
        """The slots that are free and cannot be hit any more; None if nobody knows. Makes traces much shorter."""


class KVManagerOptional(Protocol):
    """Methods of a kv_manager that may be left out. A target that has one says so with its trait in `KV_OPTIONAL`."""

    def withdraw(self, rid: str) -> None:
        """Takes back what this step scheduled for the request; of an admission that is the end of the request."""

    def fork(self, rid: str, child: str) -> Iterable[tuple[int, int]] | None:
        """The child starts with everything its parent knows and has computed. Answers the slot copies (source, target)
        that are made at once; None to refuse, and then nothing has changed.
        """

    def reset(self) -> None:
        """Everything is forgotten, live and preempted requests too."""

    def evict_all(self) -> None:
        """What is cached for nobody is dropped."""

    def events(self) -> Iterable[Event]:
        """What can be hit and what cannot any more, since the last call, in order."""


class BlockStored(NamedTuple):
    """Blocks can be hit from now on, named by `keys`, in the order of the sequence.

    `tokens` are those of all these blocks, `block_size` to a block. `parent` is the key of the block before the first,
    None at the start of a sequence. `extra_key` is the sequence's; behind a parent it may be left out.
    """

    keys: tuple[Hashable, ...]
    parent: Hashable | None
    tokens: tuple[int, ...]
    block_size: int
    extra_key: int | None = None


class BlockRemoved(NamedTuple):
    """Blocks cannot be hit any more; with a counting listener, one copy of each."""

    keys: tuple[Hashable, ...]


class AllBlocksCleared(NamedTuple):
    """No block can be hit any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared

KV_OPTIONAL = {
    "withdraw": "can_withdraw",
    "fork": "can_fork",
    "reset": "can_reset",
    "evict_all": "can_evict_all",
    "events": "event_listener",
}


@dataclass(frozen=True)
class Traits:
    """What a kv_manager target declares of itself; read from attributes of the same names.

    `total` counts slots and excludes null blocks. `max_length`: longest request in tokens, None without
    a limit; no table has more blocks than that takes, and `lookahead_blocks` more. `chunk`: prefill may be
    split, at multiples of `chunk_align`. `tokens_per_decode`: most tokens one reserve of a decode may ask
    for, None for any. `whole_prompt`: admit owns the whole prompt.
    `output_reserve`: slots kept for the output at admission, for each request admitted in the step.
    `prefix_cache`: False for an engine that never shares prefixes, so that a run without a hit is not
    inconclusive. `event_listener`: whom the events of `events` are for: "set", whoever keeps a set of keys, in which
    equal blocks are one; "counting", whoever counts a store and a removal for each copy of a block.
    """

    block_size: int
    total: int
    max_length: int | None = None
    chunk: bool = False
    chunk_align: int = 1
    tokens_per_decode: int | None = None
    extra_key: bool = False
    whole_prompt: bool = False
    early_publish: bool = False
    output_reserve: int = 0
    lookahead_blocks: int = 0
    can_withdraw: bool = False
    can_fork: bool = False
    can_reset: bool = False
    can_evict_all: bool = False
    hash_trust: str = "none"
    copies_at_admit: bool = False
    copies_at_reserve: bool = False
    prefix_cache: bool = True
    event_listener: Literal["set", "counting"] | None = None
