"""What a target with groups says about itself: tables and held blocks by group, counts and free blocks by pool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import place, whole
from kvlockstep.models.requests.adapter import PAIRS, answered_each, number, numbers
from kvlockstep.reference.kv_manager.groups.contract import Step

# The slot of each position in a group, None where there is none.
Table = list[int | None]
# By request, then by group.
Tables = dict[str, dict[int, Table]]
# The blocks that each request holds in each group, None if the target cannot tell.
Held = dict[str, dict[int, set[int] | None]]
Copy = tuple[str, int, int]
BLOCKS = {int}
TABLE_ENTRIES = {int, type(None)}


class GroupQuestions:
    """Asks a target with groups, whose traits have `groups`, `pools` and `total`."""

    def __init__(self, adapter: Any, traits: Any) -> None:
        self.groups = traits.groups
        self.pools = dict(traits.pools or {traits.groups[0].pool: traits.total // traits.groups[0].block_size})
        self.attention = [g for g, group in enumerate(self.groups) if group.kind != "state"]
        self.states = [g for g, group in enumerate(self.groups) if group.kind == "state"]
        self.windows = [g for g, group in enumerate(self.groups) if group.kind in ("window", "chunked")]
        self.rolling = [g for g, group in enumerate(self.groups) if group.kind == "rolling"]
        self.names = [f"group {g} ({group})" for g, group in enumerate(self.groups)]
        self.shows_free = True
        # Groups of which the target could not tell what a request holds.
        self.untold: set[int] = set()
        self._adapter = adapter
        self._several = traits.pools is not None
        # The arguments of a question about a pool: its name if there are several.
        self._arguments = {name: (name,) if self._several else () for name in self.pools}

    def avail(self) -> dict[str, int]:
        return self.counts(self._adapter.avail)

    def counts(self, method: Callable[..., Any]) -> dict[str, int]:
        """What a method says of each pool, which must be a number."""
        return {name: number(method, *arguments) for name, arguments in self._arguments.items()}

    def free(self) -> dict[str, list[int]]:
        """The free blocks of each pool, as far as the target says."""
        found: dict[str, list[int]] = {}
        for name, arguments in self._arguments.items() if self.shows_free else ():
            blocks = numbers(self._adapter.free_slots, *arguments, pool=self.pools[name])
            self.shows_free = self.shows_free and blocks is not None
            found[name] = sorted(blocks or [])
        return found

    def tables(self, names: Collection[str]) -> Tables:
        """The slots of each request in each attention group."""
        method, asked = self._adapter.slots, [(name, g) for name in names for g in self.attention]
        tables: Tables = {name: {} for name in names}
        for (name, g), answer in zip(asked, answered_each(method, asked), strict=True):
            tables[name][g] = table_of(answer, method)
        return tables

    def held(self, names: Collection[str]) -> Held:
        """The blocks that each request holds in each group."""
        method, asked = self._adapter.held, [(name, g) for name in names for g in range(len(self.groups))]
        held: Held = {name: {} for name in names}
        for (name, g), answer in zip(asked, answered_each(method, asked), strict=True):
            held[name][g] = None if answer is None else blocks_of(answer, method)
            if answer is None:
                self.untold.add(g)
        return held

    def pooled(self, pairs: Iterable[Any], method: Callable[..., Any]) -> list[Copy]:
        """Copies that a method returned, each with its pool."""
        if type(pairs) in (list, tuple) and not pairs:
            return []
        if self._several:
            return taken(
                lambda: [(str(p), whole(s), whole(t)) for p, s, t in bounded(pairs)],
                pairs,
                method,
                "(pool, source, target)",
            )
        pool = next(iter(self.pools))
        return taken(lambda: [(pool, whole(s), whole(t)) for s, t in bounded(pairs)], pairs, method, PAIRS)


def table_of(answer: Any, method: Callable[..., Any]) -> Table:
    """A table that a method returned. Raises Divergence for anything else."""
    if type(answer) is list and TABLE_ENTRIES.issuperset(map(type, answer)):
        return answer.copy()
    return taken(
        lambda: [None if slot is None else whole(slot) for slot in bounded(answer)], answer, method, "numbers and None"
    )


def blocks_of(answer: Any, method: Callable[..., Any]) -> set[int]:
    """Blocks that a method returned. Raises Divergence for anything else."""
    if type(answer) is list and BLOCKS.issuperset(map(type, answer)):
        return set(answer)
    return taken(lambda: {whole(block) for block in bounded(answer)}, answer, method, "numbers")


def step_of(answer: Any, method: Callable[..., Any]) -> Step:
    """The step of a state that a method returned. Raises Divergence for anything else."""

    def step() -> Step:
        source, *positions = bounded(answer)
        pairs = [[(whole(p), place(block)) for p, block in bounded(of)] for of in positions]
        return Step(None if source is None else place(source), *pairs)

    return taken(step, answer, method, "(source, [(position, block)]) with blocks from 0 on")


def copies_text(due: Iterable[Copy]) -> str:
    """Copies of whole blocks as a part of a trace line; nothing if there are none."""
    texts = [f"block {source} to {target}" for _, source, target in due]
    return f"copied {', '.join(texts)}" if texts else ""
