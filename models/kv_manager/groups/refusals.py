"""Refusals of a kv_manager with groups: each must be necessary in one pool at least, and must lower nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvlockstep.models.requests.groups import in_flight
from kvlockstep.models.requests.groups.answers import Held, Tables
from kvlockstep.models.requests.groups.occupied import occupied_in
from kvlockstep.models.requests.groups.session import named
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import counted
from kvlockstep.reference.kv.shape import blocks_for
from kvlockstep.reference.kv_manager.groups.contract import Group, needed, places

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge


def check_admission(judge: GroupedJudge, request: Request, before: Mapping[str, int] | None) -> None:
    """Raises Divergence if the request would fit into every pool, or if its refusal changed something."""
    asked: tuple[Tables, Held] | None = None
    if not _waits_for_twin(judge, request):
        admitted = sum(judge.live[name].admitted for name in judge.scheduled)
        tokens = len(request.tokens) + judge.traits.output_reserve * (1 + admitted)
        # Windows are asked for no less than full attention, though they need less: the engine may compute it all. Where
        # they may be loaded alone it may load them beside that.
        need = Counter[str]()
        alone = judge.transfers is not None and judge.traits.mixed_hits
        for group in judge.groups.groups:
            # A hit that ends within a block is copied before it is written, whose source is a block more.
            of_tokens = places(group, tokens) + judge.traits.copies_at_admit
            twice = group.kind in ("window", "chunked") and alone
            need[group.pool] += group.units if group.kind == "state" else of_tokens * (1 + twice)
        asked = _asked(judge)
        _check_honest(judge, need, f"admission of {counted(len(request.tokens), 'token')}", *asked)
    check_unchanged(judge, before, "an admission", asked and asked[0])


def check_reservation(
    judge: GroupedJudge, request: Request, n: int, before: Mapping[str, int] | None, decodes: bool
) -> None:
    """Raises Divergence if a reservation of `n` tokens would fit into every pool, or if its refusal lowered something.

    Windows slide before room is looked for, so it may raise what is available. `decodes` is False for a chunk: the
    room for the output is kept at each chunk of a prompt, as at the first.
    """
    tables, held = _asked(judge)
    need = Counter[str]()
    kept = 0 if decodes else judge.traits.output_reserve
    for g, group in enumerate(judge.groups.groups):
        if group.kind == "state":
            need[group.pool] += max(group.units, 1 + n)
            continue
        table, size = tables[request.name][g], group.block_size
        need[group.pool] += max(0, places(group, request.computed + n + kept) - places(group, len(table)))
        place = request.computed // size
        slot = table[place * size] if place * size < len(table) else None
        others = [blocks[g] for name, blocks in held.items() if name != request.name]
        # With late release a block that is being copied is shared as well, with nobody that the judge knows of.
        late = judge.traits.late_release or judge.transfers is not None
        need[group.pool] += slot is not None and (
            late or any(blocks is None or slot // size in blocks for blocks in others)
        )
    _check_honest(judge, need, f"a reservation of {counted(n, 'token')}", tables, held)
    after = judge.groups.avail() if before is not None else {}
    lowered = {pool: min(avail, after[pool]) for pool, avail in (before or {}).items()}
    _check_avail(judge, before or {}, lowered, "a reservation")
    _check_tables(judge, "a reservation", tables)


def check_unchanged(
    judge: GroupedJudge, before: Mapping[str, int] | None, what: str, tables: Tables | None = None
) -> None:
    """Raises Divergence if a refusal changed what is available, or a slot that will be read.

    `tables` are those behind the refusal, if somebody has asked for them.
    """
    if before is not None:
        _check_avail(judge, before, judge.groups.avail(), what)
    _check_tables(judge, what, tables or judge.groups.tables(judge.live))


def _asked(judge: GroupedJudge) -> tuple[Tables, Held]:
    """Asks what requests hold, those included that wait for a load."""
    return judge.groups.tables(judge.holding()), judge.groups.held(judge.holding())


def _check_avail(judge: GroupedJudge, before: Mapping[str, int], after: Mapping[str, int], what: str) -> None:
    for pool, avail in before.items():
        judge.checks.check(laws.atomicity, avail, after[pool], what, f"avail of pool {pool}")


def _check_tables(judge: GroupedJudge, what: str, tables: Tables) -> None:
    """Compares what will be read with the tables at the beginning of the step, or asks that there is a slot for it."""
    for name, request in judge.live.items():
        for g in judge.groups.attention:
            positions = needed(judge.groups.groups[g], request.computed, request.computed)
            now = _slots(tables, name, g, positions)
            if name in judge.unchanged:
                then = _slots(judge.unchanged, name, g, positions)
                judge.checks.check(laws.atomicity, then, now, what, f"what {name} reads in {named(judge, g)}")
            elif not request.pending:
                of = f"the slots that {name} reads in {named(judge, g)}"
                judge.checks.check(laws.atomicity, len(positions), len(positions) - now.count(-1), what, of)


def _slots(tables: Tables, name: str, g: int, positions: range) -> list[int]:
    """The slots of these positions, -1 where there is none."""
    table = tables[name][g]
    found = (table[p] if p < len(table) else None for p in positions)
    return [-1 if slot is None else slot for slot in found]


def _check_honest(judge: GroupedJudge, need: Counter[str], what: str, tables: Tables, held: Held) -> None:
    """Names the pool with the least room to spare: if not even that one is too small, the refusal was not needed."""
    occupied = occupied_in(judge, judge.live, tables, held)
    # What waits to be released was rightly refused.
    limbo = in_flight.limbo_of(judge, occupied)
    rooms = {pool: _room(judge, pool, occupied[pool].most, tables) - limbo[pool] for pool in need}
    need.update(_copy_sources(judge))
    short = [pool for pool in need if need[pool] > rooms[pool]]
    judge.progress.refused(short)
    tightest = min(need, key=lambda pool: rooms[pool] - need[pool])
    judge.checks.check(laws.admission_honesty, need[tightest], rooms[tightest], f"{what} in pool {tightest}")


def _room(judge: GroupedJudge, pool: str, held: int, tables: Tables) -> int:
    """Counts the blocks that a refused request could have had, less those that this step's requests still need."""
    owed = 0
    for name, request in judge.live.items():
        end = len(request.tokens) if judge.traits.whole_prompt else request.computed + request.pending
        for g, group in _of_pool(judge, pool):
            missing = places(group, end) - places(group, len(tables[name].get(g, [])))
            owed += max(0, missing) if request.pending and group.kind != "state" else 0
    total: int = judge.groups.pools[pool]
    return total - held - owed


def _copy_sources(judge: GroupedJudge) -> Counter[str]:
    """Counts blocks that may be kept until the due copies of this step have run, by pool."""
    kept = Counter[str]()
    traits = judge.traits
    for name in judge.scheduled if traits.copies_at_admit or traits.copies_at_reserve else ():
        request = judge.live[name]
        for group in judge.groups.groups:
            hit = blocks_for(request.hit, group.block_size) if request.admitted and group.kind != "state" else 0
            kept[group.pool] += max(1, hit) if traits.copies_at_admit else 1
    return kept


def _of_pool(judge: GroupedJudge, pool: str) -> list[tuple[int, Group]]:
    return [(g, group) for g, group in enumerate(judge.groups.groups) if group.pool == pool]


def _waits_for_twin(judge: GroupedJudge, request: Request) -> bool:
    """True if the manager may wait for what a request of this step is about to publish: one that begins alike.

    One token tells, since a manager may publish parts of a block.
    """
    others = [judge.live[name] for name in judge.scheduled] if judge.traits.defers_twins else []
    return any(r.tokens[0] == request.tokens[0] and r.extra_key == request.extra_key for r in others)
