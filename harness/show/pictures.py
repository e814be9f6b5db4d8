"""What a state looks like: who holds which slot or block, and the tables that lead there.

One function for each contract turns what its model observes into a Picture; a contract without one is shown by the
fields of its view. A picture is plain text and numbers, so that it can leave the process of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Divergence, Model
from kvlockstep.reference.errors import ContractError

HELD, CACHED, FREE, UNKNOWN = "held", "cached", "free", "unknown"
CALLER = "caller"
LONGEST_TEXT = 240


class Cell(NamedTuple):
    """A slot or block. `state` is held, cached (by nobody held), free or unknown; `content` is in words.

    `serves`: the position of each holder that it stands for, where that is known.
    """

    state: str
    holders: tuple[str, ...] = ()
    references: int = 0
    content: str = ""
    serves: tuple[str, ...] = ()


class Table(NamedTuple):
    """Rows of text; the first column names the row. Without columns the rows are lines of a drawing."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Picture(NamedTuple):
    """One state. `unit` is slot or block; `group` slots make a block."""

    unit: str
    cells: dict[int, Cell]
    tables: tuple[Table, ...]
    group: int = 1


NOTHING = Picture("slot", {}, ())


def picture_of(model: Model[Any]) -> Picture:
    """The state of the model's target now. A target that cannot be looked at gives a picture that says so."""
    try:
        if isinstance(model, LockstepModel):
            return picture_of_view(model, model.observe(model.target))
        draw = _JUDGED.get(model.contract)
        return draw(model) if draw is not None else NOTHING
    except (Exception, Divergence) as error:
        row = (type(error).__name__, _text(error))
        return NOTHING._replace(tables=(Table("the target cannot be looked at", ("error", "message"), (row,)),))


def picture_of_view(model: LockstepModel[Any], view: Any) -> Picture:
    """A view as a picture; one of an unexpected shape is shown by its fields."""
    draw = _PICTURES.get(model.contract)
    if draw is not None:
        try:
            return draw(model.scope, view, model.held)
        except (TypeError, ValueError, AttributeError, LookupError):
            pass
    return NOTHING._replace(tables=(_fields("view", view),))


def _kv_manager(model: Any) -> Picture:
    judge = model.judge
    tables = {name: _answer(judge.tables.entries, name) for name in judge.live}
    requests = [
        (r.name, _numbers(r.tokens), _phase(r), _key(r.extra_key), _table(tables[r.name])) for r in judge.live.values()
    ]
    waiting = [(r.name, _numbers(r.tokens), "preempted", _key(r.extra_key), "") for r in judge.preempted.values()]
    counters = (("free_now", _text(_answer(judge.adapter.free_now))),)
    return _judged(judge, tables, (*requests, *waiting), counters, ())


def _kv_scheduler(model: Any) -> Picture:
    judge = model.judge
    tables = {name: _answer(judge.adapter.slots, name) for name in judge.live}
    requests = [
        (
            name,
            _numbers(job.request.tokens),
            f"{job.request.computed} computed, {job.delivered} delivered" + (", preempted" if job.preempted else ""),
            _key(job.request.extra_key),
            _table(tables[name]),
        )
        for name, job in judge.live.items()
    ]
    queues = _answer(judge.adapter.queues)
    waiting = queues.items() if isinstance(queues, Mapping) else [("error", [queues])]
    flights = tuple((str(n), _text(flight.sampled)) for n, flight in enumerate(judge.flights))
    extra = (
        Table("queues", ("queue", "requests"), tuple((str(queue), _numbers(rids)) for queue, rids in waiting)),
        Table("batches in flight", ("batch", "tokens sampled in it"), flights),
    )
    return _judged(judge, tables, requests, (), extra)


def _judged(
    judge: Any,
    tables: Mapping[str, Any],
    requests: Iterable[tuple[str, ...]],
    counters: Iterable[tuple[str, str]],
    extra: tuple[Table, ...],
) -> Picture:
    """What judges share: slots by holder, requests, counters."""
    size = judge.traits.block_size
    owners: dict[int, list[str]] = {}
    serves: dict[int, list[str]] = {}
    for name, table in tables.items():
        for position, slot in enumerate(table if isinstance(table, (list, tuple)) else ()):
            owners.setdefault(slot, []).append(name)
            serves.setdefault(slot, []).append(f"{name} position {position}")
    free = _answer(judge.adapter.free_slots)
    free_slots = set(free) if isinstance(free, (list, tuple, set, range)) else set()
    slots = sorted({*owners, *free_slots, *(slot for slot, _ in judge.memory.contents())})
    cells = {}
    for slot, content in zip(slots, judge.memory.shown(slots), strict=True):
        state = HELD if slot in owners else FREE if slot in free_slots else CACHED
        holders = tuple(owners.get(slot, ()))
        cells[slot] = Cell(state, holders, len(holders), content, tuple(serves.get(slot, ())))
    held = len({slot // size for slot in owners}) * size
    numbers = (
        ("avail", _text(_answer(judge.adapter.avail))),
        *counters,
        ("slots of held blocks", str(held)),
        ("total", str(judge.traits.total)),
    )
    columns = ("request", "tokens", "phase", "key", "slots")
    return Picture(
        "slot",
        cells,
        (Table("requests", columns, tuple(requests)), *extra, Table("counters", ("counter", "value"), numbers)),
        size,
    )


def _slot_pool(_scope: Any, view: Any, held: Any) -> Picture:
    cells = {
        slot: Cell(FREE if free else HELD, () if free else (CALLER,), int(not free), f"version {view.versions[slot]}")
        for slot, free in enumerate(view.free)
    }
    counters = (("free_count", str(view.free_count)), ("held by the answers", _numbers(sorted(held))))
    return Picture("slot", cells, (Table("counters", ("counter", "value"), counters),))


def _slot_prefix_cache(scope: Any, view: Any, held: Any) -> Picture:
    prefixes: dict[int, list[Sequence[int]]] = {}
    for prefix, (slot, _) in view.entries.items():
        prefixes.setdefault(slot, []).append(prefix)
    cells = {}
    for slot in range(scope.slots):
        here = [p for p in prefixes.get(slot, ()) if not any(q != p and q[: len(p)] == p for q in prefixes[slot])]
        cells[slot] = Cell(CACHED if here else FREE, tuple(map(_numbers, here)), len(here), _numbers(view.kv[slot]))
    entries = tuple(
        (_numbers(prefix), str(slot), str(version), str(held.pins.get(prefix, 0)))
        for prefix, (slot, version) in sorted(view.entries.items())
    )
    return Picture("slot", cells, (Table("prefix entries", ("prefix", "slot", "version", "pins"), entries),))


def _block_stack(scope: Any, view: Any, held: Any) -> Picture:
    cells = {b: Cell(HELD, (CALLER,), 1) if b in held.blocks else Cell(UNKNOWN) for b in range(scope.blocks)}
    cells |= {b: Cell(FREE, cells[b].holders if b in cells else (), 0) for b in view.free}
    rows = (("free, bottom first", _numbers(view.free)), ("num_free", str(view.num_free)))
    return Picture("block", cells, (Table("stack", ("what", "value"), (*rows, ("capturing", str(held.capturing)))),))


def _radix_cache(scope: Any, view: Any, held: Any) -> Picture:
    cells = {slot: Cell(UNKNOWN) for slot in range(scope.pages * scope.page_size)}
    cells |= {slot: Cell(HELD, (CALLER,), 1) for slot in held.slots}
    cells |= {slot: Cell(FREE) for slot in view.free}
    entries = []
    for prefix, (slots, locks) in sorted(view.entries.items()):
        entries.append((_numbers(prefix), _numbers(slots), str(locks)))
        for slot in slots:
            cells[slot] = Cell(HELD if locks else CACHED, (_numbers(prefix),), locks)
    free, evictable, protected = view.sizes
    counters = (
        ("free", str(free)),
        ("evictable", str(evictable)),
        ("protected", str(protected)),
        ("order of eviction", _numbers(view.order)),
    )
    return Picture(
        "slot",
        cells,
        (
            Table("prefix tree", (), tuple((line,) for line in view.tree.splitlines())),
            Table("prefix entries", ("prefix", "slots of its last page", "locks"), tuple(entries)),
            Table("sizes", ("counter", "value"), counters),
        ),
        scope.page_size,
    )


def _block_pool(_scope: Any, view: Any, held: Any) -> Picture:
    cached = {block: _prefix(prefix) for prefix, blocks in view.entries.items() for block in blocks}
    cells = {}
    for block, references in enumerate(view.refs):
        state = HELD if references else CACHED if block in cached else FREE
        holders = (cached.get(block, CALLER),) if references or block in cached else ()
        cells[block] = Cell(state, holders, references, cached.get(block, ""))
    entries = tuple((_prefix(prefix), _numbers(blocks)) for prefix, blocks in view.entries.items())
    numbers = (
        ("free queue, next first", _numbers(view.queue)),
        ("num_free", str(view.num_free)),
        ("num_evictable", str(view.num_evictable)),
        ("usage", f"{view.usage:.3f}"),
    )
    return Picture(
        "block",
        cells,
        (Table("prefix entries", ("prefix", "blocks"), entries), Table("pool", ("counter", "value"), numbers)),
    )


def _paged_cache(_scope: Any, view: Any, held: Any) -> Picture:
    holders: dict[int, list[str]] = {}
    for sequence, table in view.tables.items():
        for block in table:
            holders.setdefault(block, []).append(f"s{sequence}")
    keys = {block: key for key, block in view.registered.items()}
    cells = {}
    for block, references in enumerate(view.refs):
        idle = CACHED if block in view.idle else UNKNOWN
        state = HELD if block in holders else FREE if block in view.free else idle
        content = f"registered under {keys[block]}" if block in keys else ""
        cells[block] = Cell(state, tuple(holders.get(block, ())), references, content)
    tables = tuple(
        (f"s{s}", str(view.lengths.get(s)), _numbers(table), _numbers(held.tokens.get(s, ())))
        for s, table in view.tables.items()
    )
    registered = tuple((str(key), str(block), _numbers(held.prefixes.get(key, ()))) for key, block in keys_of(view))
    lists = (("free, next first", _numbers(view.free)), ("idle, next victim first", _numbers(view.idle)))
    return Picture(
        "block",
        cells,
        (
            Table("block tables", ("sequence", "length", "blocks", "tokens"), tables),
            Table("registered prefixes", ("key", "block", "tokens"), registered),
            Table("pool", ("list", "blocks"), lists),
            _fields("statistics", view.statistics),
        ),
    )


def keys_of(view: Any) -> Iterable[tuple[int, int]]:
    """The registered (key, block) pairs of a paged_cache view, in order."""
    return sorted(view.registered.items(), key=lambda pair: (pair[1], pair[0]))


def _kv_store(scope: Any, view: Any, _held: Any) -> Picture:
    cells, rows = {}, []
    for where, planes, offset in (("device", view.device, 0), ("host", view.host, scope.blocks * scope.block_size)):
        for slot in range(len(planes[0][0]) if planes else 0):
            texts = [f"layer {n}: K {_numbers(k[slot])} V {_numbers(v[slot])}" for n, (k, v) in enumerate(planes)]
            blank = not any(any(k[slot]) or any(v[slot]) for k, v in planes)
            label = _numbers(planes[0][0][slot])
            content = f"{where} slot {slot}: {'; '.join(texts)}"
            cells[offset + slot] = Cell(FREE, (), 0, content) if blank else Cell(CACHED, (label,), 0, content)
            if not blank:
                rows.append((f"{where} {slot}", "; ".join(texts)))
    memory = (("memory_bytes", str(view.memory_bytes)),)
    return Picture(
        "slot",
        cells,
        (Table("written slots", ("slot", "K and V"), tuple(rows)), Table("memory", ("counter", "value"), memory)),
        scope.block_size,
    )


def _decode_graphs(_scope: Any, view: Any, held: Any) -> Picture:
    size = held.block_size
    owners: dict[int, list[str]] = {}
    for row, table in enumerate(view.tables):
        for block in table:
            owners.setdefault(block, []).append(f"row {row}")
    cells = {}
    for slot, stamp in enumerate(view.memory):
        holders = tuple(owners.get(slot // size, ()))
        state = HELD if holders else FREE if slot // size in view.free else UNKNOWN
        cells[slot] = Cell(state, holders, len(holders), f"stamp {stamp}")
    tables = tuple((f"row {row}", str(view.lengths[row]), _numbers(table)) for row, table in enumerate(view.tables))
    graphs = (
        ("captured since the table moved", _numbers(sorted(held.fresh))),
        ("captured before", _numbers(sorted(held.stale))),
        ("free, bottom first", _numbers(view.free)),
        ("num_free", str(view.num_free)),
    )
    return Picture(
        "slot",
        cells,
        (Table("block tables", ("row", "length", "blocks"), tables), Table("graphs", ("what", "value"), graphs)),
        size,
    )


def _kv_streams(_scope: Any, view: Any, held: Any) -> Picture:
    cells = {}
    for block, stamp in enumerate(view.memory):
        state = HELD if block in held.blocks else FREE if block in view.free else UNKNOWN
        holders = (CALLER,) if block in held.blocks else ()
        cells[block] = Cell(state, holders, len(holders), f"stamp {stamp}")
    rows = (
        ("free", _numbers(view.free)),
        ("streams held up", ", ".join(sorted(held.gates)) or "-"),
        ("asked for since the last synchronize", "; ".join(held.pending) or "-"),
        ("host", _numbers(held.host)),
    )
    return Picture("block", cells, (Table("streams", ("what", "value"), rows),))


_JUDGED: dict[str, Callable[[Any], Picture]] = {"kv_manager": _kv_manager, "kv_scheduler": _kv_scheduler}
_PICTURES: dict[str, Callable[[Any, Any, Any], Picture]] = {
    "slot_pool": _slot_pool,
    "slot_prefix_cache": _slot_prefix_cache,
    "block_stack": _block_stack,
    "radix_cache": _radix_cache,
    "block_pool": _block_pool,
    "paged_cache": _paged_cache,
    "kv_store": _kv_store,
    "decode_graphs": _decode_graphs,
    "kv_streams": _kv_streams,
}


def _answer(call: Callable[..., Any], *args: Any) -> Any:
    """What a target answers when it is only looked at; an error is an answer."""
    try:
        answer = call(*args)
        return answer if isinstance(answer, (int, list, tuple, set, range, Mapping, type(None))) else list(answer)
    except (Exception, ContractError) as error:
        return f"{type(error).__name__}: {error}"


def _fields(title: str, view: Any) -> Table:
    if isinstance(view, Mapping):
        rows = [(str(key), _text(value)) for key, value in view.items()]
    elif hasattr(view, "_fields"):
        rows = [(name, _text(getattr(view, name))) for name in view._fields]
    else:
        rows = [("value", _text(view))]
    return Table(title, ("field", "value"), tuple(rows))


def _phase(request: Any) -> str:
    pending = f", {request.pending} reserved" if request.pending else ""
    return f"{request.computed} of {len(request.tokens)} computed{pending}"


def _key(key: Any) -> str:
    return "" if key is None else str(key)


def _table(table: Any) -> str:
    return _numbers(table) if isinstance(table, (list, tuple)) else _text(table)


def _prefix(prefix: Any) -> str:
    keys = [key for key in prefix.extra_keys if key is not None]
    return _numbers(prefix.tokens) + (f" under {', '.join(map(str, keys))}" if keys else "")


def _numbers(values: Iterable[Any]) -> str:
    return _text(" ".join(map(str, values)) or "-")


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
