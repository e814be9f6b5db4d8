"""Reads, writes and copies of a target with groups: positions by the function `needed`, states by their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvlockstep.models.requests.groups.answers import Copy, Table, Tables
from kvlockstep.models.requests.groups.session import GroupSession, named, of_pool
from kvlockstep.models.requests.request import Request, require_right
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.properties.kv_manager.groups import state_soundness
from kvlockstep.properties.law import counted
from kvlockstep.properties.transfers import Source
from kvlockstep.reference.kv_manager.groups.contract import Step, needed, stored


class Access(NamedTuple):
    """What positions have slots for: `when` they have them, and what the request that is named then does with them."""

    when: str
    words: str


READ = Access("at launch", "which {} reads")
WRITTEN = Access("at launch", "which {} writes")
READ_NEXT = Access("after this step", "which the next forward of {} reads")

CONTENT = laws.prefix_soundness, laws.write_isolation, laws.content_equality


def copy(session: GroupSession, due: Sequence[Copy]) -> None:
    """Makes the copies of whole blocks."""
    sources: dict[tuple[str, int], int] = {}
    for pool, source, target in due:
        if sources.setdefault((pool, target), source) != source:
            two = [f"a copy from block {s}" for s in (sources[pool, target], source)]
            size = next(group.block_size for group in session.groups.groups if group.pool == pool)
            session.checks.check(laws.no_aliasing, two, target * size, size, name=of_pool(session, pool))
    session.kv.copy(due)


def read_rolling(session: GroupSession, request: Request, tables: Tables) -> None:
    """Reads what the next forward reads in the rolling groups, in front of its writes."""
    for g in session.groups.rolling:
        positions = needed(session.groups.groups[g], request.computed, request.computed)
        _read(session, request, tables, g, positions, session.kv.stamps(request, request.computed))


def read(
    session: GroupSession,
    request: Request,
    tables: Tables,
    stop: int,
    access: Access = READ,
    covered: bool = False,
) -> None:
    """Reads what a forward over [computed, stop) reads in every group. `covered`: all of it is known to have slots.

    Of a rolling group it reads what the forward leaves for the next one.
    """
    read_parts(session, request, tables, parts_read(session, request, stop), access, covered)


def parts_read(session: GroupSession, request: Request, stop: int) -> list[tuple[int, range]]:
    """The groups with the positions that `read` reads in them."""
    groups, parts = session.groups, []
    for g in groups.attention:
        start = first_end(request, stop) if g in groups.rolling else request.computed
        parts.append((g, needed(groups.groups[g], start, stop)))
    return parts


def read_parts(
    session: GroupSession,
    request: Request,
    tables: Tables,
    parts: Sequence[tuple[int, range]],
    access: Access = READ,
    covered: bool = False,
) -> None:
    """Reads these groups and positions; `covered` as for `read`."""
    stamps = session.kv.stamps(request, max((positions.stop for _, positions in parts), default=0))
    for g, positions in parts:
        _read(session, request, tables, g, positions, stamps, access, covered)


def _read(
    session: GroupSession,
    request: Request,
    tables: Tables,
    g: int,
    positions: range,
    stamps: Sequence[int],
    access: Access = READ,
    covered: bool = False,
) -> None:
    checks = session.checks
    checks.subject = request.name
    if not covered:
        cover(session, request.name, tables[request.name], g, positions, access)
    checks.evaluated[laws.prefix_soundness.id] += positions.start < request.hit
    checks.evaluated[laws.content_equality.id] += bool(positions)
    for law in session.reading:
        checks.evaluated[law.id] += bool(positions)
    cell = session.kv.first_wrong(request, g, tables[request.name][g], positions, stamps)
    if cell is not None:
        cell = cell._replace(also=_also(request.name, tables, g, cell))
        reading = [checks.of(law) for law in session.reading]
        require_right(request, cell, [*reading, *(checks.of(law) for law in CONTENT)])


def cover(
    session: GroupSession,
    name: str,
    tables: Mapping[int, Table],
    g: int,
    positions: range,
    access: Access,
    prefix: str | None = None,
) -> None:
    """Raises Divergence unless each of the positions of a request has a slot in the group.

    The message begins with `prefix`, if there is one.
    """
    table = tables[g]
    if positions.stop <= len(table) and None not in table[positions.start : positions.stop]:
        session.checks.holds(laws.coverage)
        return
    missing = [p for p in positions if p >= len(table) or table[p] is None]
    used = access.words.format(name)
    where = f" of {named(session, g)}, {used}: position {missing[0]} has none" if missing else ""
    observed = len(positions) - len(missing), len(positions), where, access.when
    session.checks.check(laws.coverage, *observed, name=prefix)


def read_state(session: GroupSession, request: Request, g: int, step: Step) -> None:
    """Reads the state that a step goes on from."""
    session.checks.subject = request.name
    if not request.computed:
        return
    wrong = ("nothing", "the state") if step.source is None else session.kv.wrong_state(request, g, step.source)
    got, want = wrong or ("", "")
    for law in session.reading if wrong else ():
        session.checks.check(law, Source(request.name, f"its state in block {step.source}", got))
    session.checks.check(state_soundness, request.computed, step.source, got, want, name=request.name)
    session.goals_met["state_in_place"] += stays(step)
    session.goals_met["state_moves"] += not stays(step)


def stays(step: Step) -> bool:
    """Tells whether the state may be written to the block that it is read from."""
    return step.source in [block for _, block in (*step.saves, *step.commits)]


def write(
    session: GroupSession, request: Request, tables: Mapping[int, Table], stop: int, covered: bool = False
) -> None:
    """Writes positions [computed, stop) in every attention group."""
    session.checks.subject = request.name
    positions, stamps = range(request.computed, stop), session.kv.stamps(request, stop)
    for g in session.groups.attention:
        if not covered:
            group = session.groups.groups[g]
            kept = stored(group, request.computed, stop, first_end(request, stop))
            cover(session, request.name, tables, g, kept, WRITTEN)
        session.checks.evaluated[laws.no_aliasing.id] += 1
        conflict = session.kv.write(request, g, tables[g], positions, stamps)
        if conflict is not None:
            slot, other = conflict
            two = [f"{other} and {request.name} in {named(session, g)}"]
            session.checks.check(laws.no_aliasing, two, slot, session.groups.groups[g].block_size)


def save(session: GroupSession, request: Request, g: int, step: Step, stop: int) -> None:
    """Saves the states of a step, of which one is behind each token that may turn out to be the last."""
    session.checks.subject = request.name
    must = range(first_end(request, stop), stop + 1)
    saved = {position for position, _ in (*step.saves, *step.commits)}
    missing = [position for position in must if position not in saved]
    where = f" of {named(session, g)}: no state is saved behind {counted(missing[0], 'token')}" if missing else ""
    session.checks.check(laws.coverage, len(must) - len(missing), len(must), where)
    for position, block in step.saves:
        if request.computed < position <= stop:
            _save(session, request, g, position, block)


def _save(session: GroupSession, request: Request, g: int, position: int, block: int) -> None:
    other = session.kv.save(request, g, position, block)
    if other is not None:
        two = [f"the state of {other}", f"that of {request.name} behind {counted(position, 'token')}"]
        size = session.groups.groups[g].block_size
        session.checks.check(laws.no_aliasing, two, block * size, size, name=named(session, g))


def keep(session: GroupSession, request: Request, g: int, step: Step) -> None:
    """Copies the checkpoint of the last position that the request has reached, and commits its state there."""
    session.checks.subject = request.name
    saved = dict(step.saves)
    last = max((position for position, _ in step.checkpoints if position <= request.computed), default=None)
    for position, block in step.checkpoints:
        if position == last and position in saved:
            session.kv.copy([(session.groups.groups[g].pool, saved[position], block)])
        elif position == last:
            _save(session, request, g, position, block)
    for position, block in step.commits:
        if position == request.computed:
            _save(session, request, g, position, block)


def first_end(request: Request, stop: int) -> int:
    """The first position at which a forward up to `stop` may turn out to end: behind the known tokens are drafts."""
    return min(max(request.computed + 1, len(request.tokens)), stop)


def _also(reader: str, tables: Tables, g: int, cell: Cell) -> tuple[str, ...]:
    """The other positions, of any request, that the slot serves in the group."""
    return tuple(
        f"{name} position {position}"
        for name, groups in tables.items()
        for position, slot in enumerate(groups[g])
        if slot == cell.slot and (name, position) != (reader, cell.position)
    )
