"""Model of paged_alloc: requests are extended and decoded in batches, cut back to a page boundary, and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.model import Factory, Goal, Model, Scope
from kvlockstep.models.core.op import Op, Pick, command, one_in, require, sample
from kvlockstep.models.core.operations import Ints
from kvlockstep.models.core.picture import FREE, HELD, UNKNOWN, Cell, Picture, Table, numbers
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import wholes
from kvlockstep.models.requests.adapter import answered, make_adapter, named, number
from kvlockstep.models.requests.adapter import numbers as numbers_of
from kvlockstep.models.requests.answers import DONE, REFUSED, Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties import paged_alloc as laws
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.properties.paged_alloc import LAWS, Batch, Pool, new_pages


@dataclass(frozen=True)
class PagedAllocScope(Scope):
    """A pool of `pages` pages for up to `requests` requests, each of at most `longest` tokens."""

    pages: int
    page_size: int
    requests: int
    longest: int
    exhaustive: bool = False

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_json().items() if name != "exhaustive"}


class PagedAllocModel(Model[PagedAllocScope]):
    contract = "paged_alloc"
    laws = LAWS
    scope_type = PagedAllocScope
    operations = {
        "extend": {"requests": Ints, "tokens": Ints},
        "decode": {"requests": Ints},
        "cut": {"request": int, "length": int},
    }
    scopes = (
        PagedAllocScope(4, 4, 3, 12),
        PagedAllocScope(6, 2, 4, 8),
        PagedAllocScope(3, 8, 3, 20),
        PagedAllocScope(8, 2, 4, 5),
        PagedAllocScope(12, 16, 6, 60),
        PagedAllocScope(2, 4, 3, 8),
    )
    small_scopes = (
        PagedAllocScope(2, 2, 2, 3, exhaustive=True),
        PagedAllocScope(3, 2, 2, 3, exhaustive=True),
    )
    goals = (
        Goal("filled", "a partly filled page is filled"),
        Goal("filled_and_new", "tokens fill a page and begin another"),
        Goal("full_pages", "tokens take several whole pages"),
        Goal("new_tail", "tokens end in the middle of a new page"),
        Goal("several", "several requests of a batch need new pages"),
        Goal("mixed", "in one batch a request needs a new page and another none"),
        Goal("decode_new_page", "a decode begins a page"),
        Goal("decode_same_page", "a decode stays in its page"),
        Goal("refused", "a batch is refused"),
        Goal("refused_by_one", "a batch is refused that lacks one page"),
        Goal("exhausted", "a batch takes the last free page"),
        Goal("no_page_needed", "a batch is served with no page free"),
        Goal("no_tokens", "a request of a batch has no new token"),
        Goal("cut_to_boundary", "a request keeps some pages and gives others back"),
        Goal("ended", "a request gives back a partly filled page"),
        Goal("physical_reuse", "a page is handed out again"),
    )

    def __init__(self, scope: PagedAllocScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        self.adapter = make_adapter(factory, scope.pages, scope.page_size)
        self.checks = Checks(self.laws)
        self.slots: list[tuple[int, ...]] = [()] * scope.requests
        self._returned: set[int] = set()
        self.pool = self._look()
        # A new pool is what is free in it: engines number their pages from 0 or from 1.
        self.pages = sorted(page for page in self.pool.free if page >= 0)
        self._settle()
        if len(self.pages) != scope.pages:
            self.checks.check(laws.conservation, Counter[int](), self.pool, range(scope.pages))

    @command(5)
    def extend(self, pick: Pick) -> Op:
        """Prompts and chunks: some requests get several tokens each."""
        requests = self._some(pick)
        size, tokens = self.scope.page_size, []
        for request in requests:
            room = self.scope.longest - len(self.slots[request])
            if self.scope.exhaustive:
                tokens.append(pick(range(room + 1)))
                continue
            to_boundary = -len(self.slots[request]) % size
            likely = [n for n in (to_boundary, to_boundary + size, to_boundary + 1, 1, 2 * size + 1) if n <= room]
            tokens.append(pick(likely) if likely and one_in(2, pick) else pick(range(room + 1)))
        return Op("extend", requests=requests, tokens=tokens)

    @command(4)
    def decode(self, pick: Pick) -> Op:
        """Some requests get one token each."""
        able = [r for r in range(self.scope.requests) if 0 < len(self.slots[r]) < self.scope.longest]
        require(able)
        return Op("decode", requests=able[:1] if self.scope.exhaustive else sample(pick, able, pick((len(able), 1, 2))))

    @command(3)
    def cut(self, pick: Pick) -> Op:
        """A request ends, or gives back the pages behind a page boundary."""
        request = pick([r for r, slots in enumerate(self.slots) if slots])
        boundaries = range(0, len(self.slots[request]), self.scope.page_size)
        return Op("cut", request=request, length=pick(boundaries) if one_in(3, pick) else 0)

    def step(self, op: Op) -> Answer:
        require(self._legal(op))
        answer = self._execute(op, judged=True)
        self.evaluated[ERROR_CONTRACT.id] += 1
        self.evaluated[TERMINATION.id] += 1
        return answer

    def redo(self, op: Op) -> None:
        self._execute(op, judged=False)

    def _execute(self, op: Op, judged: bool) -> Answer:
        if op.name == "cut":
            request, length = op.args["request"], op.args["length"]
            self._free(request, length)
            answer = DONE
        else:
            requests = op.args["requests"]
            tokens = op.args["tokens"] if op.name == "extend" else [1] * len(requests)
            answer = self._allocate(op.name, requests, tokens, judged)
        if judged:
            self._settle()
        return answer

    def _allocate(self, name: str, requests: list[int], tokens: list[int], judged: bool) -> Answer:
        starts = [len(self.slots[r]) for r in requests]
        lengths = [start + n for start, n in zip(starts, tokens, strict=True)]
        last = [self.slots[r][-1] if self.slots[r] else -1 for r in requests]
        arguments = (starts, lengths, last) if name == "extend" else (lengths, last)
        slots = numbers_of(getattr(self.adapter, name), *map(list, arguments))
        before, self.pool = self.pool, self._look()
        batch = Batch(self.scope.page_size, starts, lengths, last, slots, before, self.pool)
        if judged:
            # What is handed out comes before what is left: a page given twice is also one page too many that is free.
            for law in (laws.admission_honesty, laws.atomicity, laws.coverage, laws.page_order, laws.no_aliasing):
                self.checks.check(law, batch)
            self._notice(name, batch)
        for request, part in zip(requests, batch.parts(), strict=True):
            self.slots[request] += tuple(part)
        return REFUSED if slots is None else Answer(text=f"slots {numbers(slots)}")

    def _free(self, request: int, length: int) -> None:
        kept, given = self.slots[request][:length], self.slots[request][length:]
        answered(self.adapter.free, list(given))
        self.slots[request] = kept
        self.pool = self._look()
        self._returned |= {slot // self.scope.page_size for slot in given}
        self.goals_met["cut_to_boundary"] += bool(kept)
        self.goals_met["ended"] += not kept and len(given) % self.scope.page_size > 0

    def _look(self) -> Pool:
        answer = answered(self.adapter.free_pages)
        free = taken(lambda: wholes(answer), answer, self.adapter.free_pages, "page numbers")
        return Pool(free, number(self.adapter.available))

    def _settle(self) -> None:
        size = self.scope.page_size
        held = Counter(page for slots in self.slots for page in {slot // size for slot in slots})
        self.checks.check(laws.conservation, held, self.pool, self.pages)
        self.checks.check(laws.accounting, self.pool, size)

    def _notice(self, name: str, batch: Batch) -> None:
        met, size = self.goals_met, batch.page_size
        needed, free = batch.needed, len(batch.before.free)
        met["refused"] += batch.slots is None
        met["refused_by_one"] += batch.slots is None and needed == free + 1
        if batch.slots is None:
            return
        new = [new_pages(start, length, size) for start, length in zip(batch.starts, batch.lengths, strict=True)]
        for start, length, pages in zip(batch.starts, batch.lengths, new, strict=True):
            met["filled"] += start % size > 0 and length > start and length % size == 0
            met["filled_and_new"] += start % size > 0 and pages > 0
            met["full_pages"] += pages > 2
            met["new_tail"] += pages > 0 and length % size > 0
            met["no_tokens"] += length == start and len(new) > 1
        met["several"] += sum(pages > 0 for pages in new) > 1
        met["mixed"] += any(new) and any(not pages for pages in new)
        met["decode_new_page"] += name == "decode" and any(new)
        met["decode_same_page"] += name == "decode" and not all(new)
        met["exhausted"] += 0 < needed == free
        met["no_page_needed"] += free == 0 and bool(batch.slots)
        met["physical_reuse"] += any(slot // size in self._returned for slot in batch.slots if slot % size == 0)

    @property
    def evaluated(self) -> Counter[str]:
        return self.checks.evaluated

    def forget(self) -> None:
        super().forget()
        self.evaluated.clear()

    def describe(self) -> dict[str, Any]:
        return dict(named(self.adapter))

    def fingerprint(self) -> Any:
        return tuple(self.slots), tuple(self.pool.free)

    def picture(self) -> Picture:
        size, held = self.scope.page_size, dict[int, list[str]]()
        for request, slots in enumerate(self.slots):
            for page in {slot // size for slot in slots}:
                held.setdefault(page, []).append(f"request {request}")
        cells = {}
        for page in {*self.pages, *self.pool.free}:
            holders = tuple(held.get(page, ()))
            state = FREE if page in self.pool.free else HELD if holders else UNKNOWN
            cells[page] = Cell(state, holders, len(holders))
        rows = tuple((str(request), numbers(slots)) for request, slots in enumerate(self.slots) if slots)
        counters = (("free pages", numbers(self.pool.free)), ("available", str(self.pool.available)))
        tables = (Table("requests", ("request", "slots"), rows), Table("pool", ("what", "value"), counters))
        return Picture("page", cells, tables)

    @classmethod
    def simpler_scopes(cls, scope: PagedAllocScope) -> Iterable[Scope]:
        for name in ("pages", "page_size", "requests", "longest"):
            for size in range(1, getattr(scope, name)) if name != "page_size" else (2, 4, 8):
                if size >= getattr(scope, name):
                    continue
                changed: dict[str, Any] = {name: size}
                yield replace(scope, **changed)

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        if op.name == "extend":
            requests, tokens = op.args["requests"], op.args["tokens"]
            for i in range(min(len(requests), len(tokens))):
                yield op.but(requests=requests[:i] + requests[i + 1 :], tokens=tokens[:i] + tokens[i + 1 :])
        yield from super().simpler(op)

    def _some(self, pick: Pick) -> list[int]:
        requests = range(self.scope.requests)
        return sample(pick, requests, pick((1, 2, 3, len(requests)) if not self.scope.exhaustive else (1, 2)))

    def _legal(self, op: Op) -> bool:
        """Tells whether the caller may do this: a shorter trace may name requests and tokens that there are not."""
        args, slots = op.args, self.slots
        requests = args["requests"] if op.name != "cut" else [args["request"]]
        if not all(0 <= r < len(slots) for r in requests) or len(set(requests)) < len(requests) or not requests:
            return False
        match op.name:
            case "extend":
                whole = len(args["tokens"]) == len(requests) and min(args["tokens"]) >= 0
                longest = self.scope.longest
                return whole and all(
                    len(slots[r]) + n <= longest for r, n in zip(requests, args["tokens"], strict=True)
                )
            case "decode":
                return all(0 < len(slots[r]) < self.scope.longest for r in requests)
        length = args["length"]
        return bool(0 <= length < len(slots[requests[0]]) and length % self.scope.page_size == 0)
