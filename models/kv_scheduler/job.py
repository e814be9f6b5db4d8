"""Jobs and flights: a request and a batch as the judge of a kv_scheduler knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, PAD_DRAFT, Item


@dataclass
class Job:
    """A live request. `request` has its true tokens, those in flight included.

    The first `prompt` tokens are its prompt; of those behind them the scheduler has heard of `delivered`. `rank` orders
    it under the policy. It is `fresh` while it holds nothing: before its start, and after a preemption. It `decodes`
    if its last batch has sampled for it. `offered` are drafts for its next batch. If it is `aborted`, it ends with its
    next token at the latest.

    After a failed load of its own batch, `known` is the number of its tokens before that batch, and `first_lost` the
    position at which the batch began. Once the scheduler has heard of the failure, the request goes on from `restart`
    or before.
    """

    request: Request
    max_tokens: int
    rank: tuple[int, int]
    prompt: int
    delivered: int = 0
    fresh: bool = True
    preempted: bool = False
    decodes: bool = False
    aborted: bool = False
    known: int | None = None
    first_lost: int = 0
    restart: int | None = None
    offered: list[int] = field(default_factory=list)

    @property
    def undelivered(self) -> int:
        """Tokens that the scheduler has not heard of."""
        return len(self.request.tokens) - self.prompt - self.delivered

    def cut(self, tokens: list[int]) -> list[int]:
        """Returns these tokens up to the end of the request."""
        left = tokens[: max(0, self.max_tokens + self.prompt - len(self.request.tokens))]
        return left[: left.index(END_TOKEN) + 1] if END_TOKEN in left else left

    def guesses(self, item: Item) -> list[int]:
        """Returns the drafts that a right item has: those that were offered, and padding where the item has padding.

        An item may leave out ids that only the device knows.
        """
        fed = list(item.tokens[item.n - item.drafts :])
        offered = [*self.offered, *[PAD_DRAFT] * item.drafts]
        return [PAD_DRAFT if fed[i : i + 1] == [PAD_DRAFT] else offered[i] for i in range(item.drafts)]

    @property
    def lost(self) -> bool:
        """True from a void batch up to the next one that it is in."""
        return self.known is not None or self.restart is not None

    @property
    def work(self) -> int:
        """The most tokens that it can have."""
        return self.prompt + self.max_tokens


class Flight(NamedTuple):
    """A batch in flight: its requests, the token sampled for each that samples, and how many drafts were right.

    `gained` are the tokens that each request gets by it: accepted drafts and the sampled one, up to its end.
    `rejected` counts the drafts that were wrong.
    """

    names: set[str]
    sampled: dict[str, int]
    accepted: dict[str, int]
    rejected: dict[str, int]
    gained: dict[str, list[int]]
