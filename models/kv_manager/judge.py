"""Judges a kv_manager: makes its calls in the grammar of the contract, owns the KV memory, checks the laws.

Nothing is held against a placement or a policy. A hit is judged when it is read, in the forward that reads it
(rule 2). Slots are asked for afresh at every forward; between a reservation and its forward no KV is read (rule 3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.requests.adapter import Places, answered, events, number, pairs, read_traits
from kvlockstep.models.requests.answers import copies_text, freed_text
from kvlockstep.models.requests.request import Memory, Request, accepted_of, require_right
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.listener import Hit, Listener, Room
from kvlockstep.properties.law import ERROR_CONTRACT, Law, counted, verdict
from kvlockstep.reference.kv_manager.contract import BlockRemoved, Traits

ASK_ORDERS = ("avail", "free_now", "slots", "late")


class KVJudge:
    """One engine under one scheduler. Every public method is an operation of a trace and returns its answer as text.

    `ask` is the order in which the manager is asked about itself, since a question that flushes lazy work hides
    bugs (rule 12): "late" asks nothing before an operation. Raises Divergence, or NotEnabled if the grammar forbids
    the operation now.

    Where the memory keeps one stamp per block, nobody listens to events, which would take memory for every prefix ever
    seen.
    After a Divergence `subject` is the request that it concerns, if it concerns one. `avail` is what the manager said
    after the last operation, None where a step goes on and nobody asked. `evicted_blocks` counts what must
    have been evicted: of the blocks that were taken or became free, those that no request gave back.
    """

    _call = staticmethod(answered)

    def __init__(self, adapter: Any, memory: Callable[[Any, Traits, Counter[str]], Memory], ask: str = "avail") -> None:
        self.adapter = adapter
        self.traits = read_traits(adapter, Traits)
        self.ask = ask
        self.reach: Counter[str] = Counter()
        self.memory = memory(adapter, self.traits, self.reach)
        self.subject: str | None = None
        self.avail: int | None = None
        self._said = ""
        self._freed: set[int] = set()
        self.evicted_blocks = 0
        by_block = self.memory.granularity == "block"
        self.places = Places(adapter, self.traits.block_size, by_block, self.memory.sparing, self.traits.total)
        self._span = self.places.span
        self._settled: dict[str, list[int]] | None = None
        self._unchanged: dict[str, list[int]] = {}
        longest = self.traits.max_length
        self._most_blocks = None if longest is None else self._blocks_for(longest) + self.traits.lookahead_blocks
        self._free_checked: list[int] | None = None
        self.live: dict[str, Request] = {}
        self.preempted: dict[str, Request] = {}
        self.scheduled: list[str] = []
        self.used_names: set[str] = set()
        self._last_admission: str | None = None
        self._unannounced: str | None = None
        self._first_hit: Request | None = None
        self.admitting = False
        self._blocks_seen: set[int] = set()
        self._held: set[int] = set()
        self.idle_blocks: dict[int, None] = {}
        self._free_before: int | None = None
        self._written: set[int] = set()
        self._lengths: dict[str, int] = {}
        self.evaluated: Counter[str] = Counter()
        self.saw_evictable = False
        self.saw_growth = False
        listener = Listener(self.traits.block_size, self.traits.event_listener == "counting")
        self.listener = listener if self.traits.event_listener and not self.places.by_block else None
        self._settle()

    def begin(self) -> None:
        """An operation begins: nothing of it is answered yet."""
        self.avail = None
        self._said = ""
        self._freed = set()

    @property
    def so_far(self) -> str:
        """What the last operation has answered, also if it failed on the way."""
        return " ".join(filter(None, (self._said, freed_text(self._freed))))

    def admit(self, name: str, tokens: Sequence[int], extra_key: int | None, n: int) -> str:
        """A new request asks for admission with a first chunk of `n` tokens."""
        if name in self.used_names or not self._may_admit(tokens, n):
            raise NotEnabled
        if extra_key is not None and not self.traits.extra_key:
            raise NotEnabled
        self.used_names.add(name)
        self._notice_prompt(name, tokens, extra_key)
        return self._admit(Request(name, list(tokens), extra_key), n)

    def resume(self, name: str, n: int) -> str:
        """A preempted request comes back with all the tokens that it knows."""
        request = self.preempted.get(name)
        if request is None or not self._may_admit(request.tokens, n):
            raise NotEnabled
        answer = self._admit(Request(name, request.tokens, request.extra_key), n)
        if name in self.live:
            del self.preempted[name]
            self.reach["resume"] += 1
        return answer

    def chunk(self, name: str, n: int) -> str:
        """The next `n` tokens of a prompt are scheduled."""
        request = self._unscheduled(name)
        if not self.traits.chunk or not 1 <= n <= request.remaining or request.computed == 0:
            raise NotEnabled
        if n % self.traits.chunk_align and n != request.remaining:
            raise NotEnabled
        self.reach["chunk"] += 1
        return self._reserve(request, n)

    def decode(self, name: str, token: int, drafts: Sequence[int]) -> str:
        """One more token is sampled, unless one waits for its slot, and scheduled with `drafts` behind it."""
        request = self._unscheduled(name)
        length = max(len(request.tokens), request.computed + 1) + len(drafts)
        if request.remaining > 1 or (self.traits.max_length is not None and length > self.traits.max_length):
            raise NotEnabled
        if self.traits.tokens_per_decode is not None and 1 + len(drafts) > self.traits.tokens_per_decode:
            raise NotEnabled
        appended = request.remaining == 0
        if appended:
            self._call(self.adapter.append, name, token)
            request.tokens.append(token)
        request.drafts = list(drafts)
        return self._reserve(request, 1 + len(drafts), appended)

    def withdraw(self, name: str) -> str:
        """What was scheduled for a request in this step is taken back, before any later admission."""
        if name not in self.withdrawable():
            raise NotEnabled
        request = self.live[name]
        self._unchanged = {}
        self._call(self.adapter.withdraw, name)
        self.scheduled.remove(name)
        request.pending = 0
        request.drafts = []
        if request.admitted:
            del self.live[name]
        self._last_admission = None
        self.reach["withdraw"] += 1
        if not self.scheduled:
            self._settle()
        return "done"

    def preempt(self, name: str) -> str:
        """A request with nothing reserved gives its slots back, to be resumed."""
        request = self._unscheduled(name)
        self._unchanged = {}
        self._call(self.adapter.preempt, name)
        self.preempted[name] = self.live.pop(name)
        request.admitted = False
        self.reach["preempt"] += 1
        if not self.scheduled:
            self._settle()
        return "done"

    def forward(self, accept: int | dict[str, int] | None, abort: Sequence[str], reverse: bool | None) -> str:
        """Copies, launch, all writes, all reads, then commits in scheduling order or `reverse`.

        `accept` drafts of each request are accepted, or as many as it says for the request; requests in `abort` are
        aborted instead of committed.
        """
        if not self.scheduled or not set(abort) <= set(self.scheduled):
            raise NotEnabled
        due = pairs(self.adapter.copies) or []
        self._said = copies_text(due)
        self._copy(due)
        self._call(self.adapter.launch)
        if self.ask != "late" and not self.places.sparing:
            self.memory.poison(self.places.free())
        self._write_and_read()
        for name in reversed(self.scheduled) if reverse else list(self.scheduled):
            if name in abort:
                self._call(self.adapter.abort, name)
                del self.live[name]
                self.reach["launched_abort"] += 1
            else:
                self._commit(self.live[name], accepted_of(accept, name))
        self.reach["reverse_commits"] += bool(reverse) and len(self.scheduled) > 1
        self.scheduled.clear()
        self.admitting = False
        self._last_admission = None
        self._settle()
        self.memory.end_forward()
        return self.so_far or "done"

    def finish(self, name: str) -> str:
        """A request that has computed its prompt ends; what stays cached is the engine's business (rule 9)."""
        if self._between_steps(name).remaining > 1:
            raise NotEnabled
        self._call(self.adapter.finish, name)
        del self.live[name]
        self._settle()
        return "done"

    def abort(self, name: str) -> str:
        """A request ends in whatever phase it is."""
        self.reach["abort_in_prefill"] += self._between_steps(name).remaining > 1
        self._call(self.adapter.abort, name)
        del self.live[name]
        self._settle()
        return "done"

    def fork(self, name: str, child: str) -> str:
        """A child starts with everything its parent knows and has computed."""
        parent = self._between_steps(name)
        if not self.traits.can_fork or child in self.used_names:
            raise NotEnabled
        self.used_names.add(child)
        before = self._avail_before()
        due = pairs(self.adapter.fork, name, child)
        if due is None:
            self._check_unchanged(before, "a fork")
            self._settle()
            return "refused"
        self._copy(due, f"when {child} was forked")
        self.live[child] = Request(
            child, list(parent.tokens), parent.extra_key, parent.computed, 0, parent.hit, [], list(parent.stamps)
        )
        self.reach["fork"] += 1
        self.reach["fork_in_block"] += parent.computed % self.traits.block_size > 0
        self._settle()
        return f"copies {counted(len(due), 'slot')}" if due else "done"

    def evict_all(self) -> str:
        """The engine drops whatever it caches for nobody."""
        if not self.traits.can_evict_all or self.scheduled:
            raise NotEnabled
        self._call(self.adapter.evict_all)
        held = len(self._held) * self.traits.block_size
        self._check(laws.eviction_complete, number(self.adapter.free_now), held, self.traits.total)
        self.reach["evict_all"] += 1
        self._settle()
        return "done"

    def reset(self) -> str:
        """Live and preempted requests are gone, and so is everything cached."""
        if not self.traits.can_reset or self.scheduled:
            raise NotEnabled
        self.reach["reset_live"] += bool(self.live)
        self._call(self.adapter.reset)
        self.live.clear()
        self.preempted.clear()
        avail, free_now = number(self.adapter.avail), number(self.adapter.free_now)
        self._check(laws.reset_complete, avail, free_now, self.traits.total)
        size = self.traits.block_size
        self.memory.reset([block * size + i for block in self._blocks_seen for i in range(0, size, self._span)])
        self._settle()
        return "done"

    def withdrawable(self) -> list[str]:
        """Requests whose schedule can be taken back: the admission just made, or any while none was made yet."""
        if not self.traits.can_withdraw:
            return []
        if self.admitting:
            return [name for name in self.scheduled if name == self._last_admission]
        return list(self.scheduled)

    def _may_admit(self, tokens: Sequence[int], n: int) -> bool:
        traits = self.traits
        if not tokens or n < 1 or (traits.max_length is not None and len(tokens) > traits.max_length):
            return False
        return n == len(tokens) or (traits.chunk and n < len(tokens) and n % traits.chunk_align == 0)

    def _unscheduled(self, name: str) -> Request:
        request = self.live.get(name)
        if request is None or request.pending or self.admitting:
            raise NotEnabled
        return request

    def _between_steps(self, name: str) -> Request:
        request = self.live.get(name)
        if request is None or self.scheduled:
            raise NotEnabled
        return request

    def _admit(self, request: Request, n: int) -> str:
        before = self._avail_before()
        self._listen()
        first = not self.scheduled
        cached = self._call(self.adapter.admit, request.name, list(request.tokens), request.extra_key, n)
        self.reach["admit_into_step"] += any(not self.live[s].admitted for s in self.scheduled)
        self.admitting = True
        self._last_admission = None
        if cached is None:
            self._said = "refused"
            self._refuse_admission(request, before)
            return "refused"
        self._unchanged = {}
        self._said = f"cached {cached}"
        if hasattr(cached, "__index__") and not isinstance(cached, bool):
            cached = index(cached)
        self._check(laws.hit_bounds, cached, len(request.tokens))
        if self.listener is not None:
            self._compare(self.listener, Hit(request.tokens, request.extra_key, cached))
        request.computed = request.hit = cached
        request.pending = min(n, len(request.tokens) - cached)
        request.admitted = True
        self.live[request.name] = request
        self.scheduled.append(request.name)
        self._last_admission = request.name
        self._first_hit = request if first else self._first_hit
        self._notice_hit(request)
        return self._said

    def _compare(self, listener: Listener, hit: Hit) -> None:
        """A hit beside what the events say; one that is too long is judged by its content first, when it is read."""
        self.reach["announced_hit"] += hit.cached > 0
        wrong = verdict(laws.event_consistency, listener, hit)
        if wrong is not None and hit.cached > listener.known(hit):
            self._unannounced = self._unannounced or wrong
        else:
            self._check(laws.event_consistency, listener, hit)

    def _refuse_admission(self, request: Request, before: int | None) -> None:
        self.reach["refused_admission"] += 1
        reserve = self.traits.output_reserve * (1 + sum(self.live[name].admitted for name in self.scheduled))
        needed = self._blocks_for(len(request.tokens) + reserve) + self._copy_sources()
        what = f"admission of {counted(len(request.tokens), 'token')}"
        self._check(laws.admission_honesty, needed, self._room(), what)
        self._check_unchanged(before, "an admission")
        if not self.scheduled:
            self.admitting = False
            self._settle()

    def _reserve(self, request: Request, n: int, appended: bool = False) -> str:
        before = self._avail_before()
        accepted = self._call(self.adapter.reserve, request.name, n)
        if accepted is None:
            raise Divergence(ERROR_CONTRACT.id, "reserve answered None, not True or False")
        if not accepted:
            self._said = "refused"
            self.reach["refused_reserve"] += 1
            request.drafts = []
            table = self.places.table(request.name)
            others = {block for name in self.live if name != request.name for block in self._blocks_of(name)}
            shared = len(self._written_by(request, n, table) & others)
            more = self._blocks_for(request.computed + n) - len(self._blocks_of(request.name))
            needed = max(0, more) + shared + self._copy_sources()
            what = f"a reservation of {counted(n, 'token')}"
            self._check(laws.admission_honesty, needed, self._room(), what)
            self._check_unchanged(before, "a reservation", request if appended else None)
            if not self.scheduled:
                self._settle()
            return "refused"
        self._unchanged = {}
        request.pending = n
        request.admitted = False
        self.scheduled.append(request.name)
        self.reach["drafts"] += len(request.drafts) > 0
        self.reach["decode_at_block_start"] += request.computed % self.traits.block_size == 0
        return "done"

    def _written_by(self, request: Request, n: int, table: Sequence[int]) -> set[int]:
        """The blocks that `n` more tokens go to, as far as the table has them; the table may end within a block."""
        size = self.traits.block_size
        start = request.computed - (request.computed % size > 0)
        return {slot // size for slot in table[start // self._span : -(-(request.computed + n) // self._span)]}

    def _room(self) -> int:
        """Blocks that a refused request could have had, counting what this step's requests still have to come."""
        held: set[int] = set()
        owed = 0
        for request in self.live.values():
            blocks = self._blocks_of(request.name)
            held |= blocks
            end = len(request.tokens) if self.traits.whole_prompt else request.computed + request.pending
            owed += max(0, self._blocks_for(end) - len(blocks)) if request.pending else 0
        return self.traits.total // self.traits.block_size - len(held) - owed

    def _copy_sources(self) -> int:
        """Blocks that may be kept until the copies that are due in this step have run: of a hit all that it has."""
        if not self.traits.copies_at_admit:
            return len(self.scheduled) if self.traits.copies_at_reserve else 0
        hits = (self.live[name].hit if self.live[name].admitted else 0 for name in self.scheduled)
        return sum(max(1, self._blocks_for(hit)) for hit in hits)

    def _write_and_read(self) -> None:
        size, span = self.traits.block_size, self._span
        self.memory.begin_forward()
        tables = {name: self.places.table(name) for name in self.live}
        self._check_lengths(tables)
        for name in self.scheduled:
            request = self.live[name]
            stop = request.computed + request.pending
            self.subject = name
            self._check(laws.coverage, len(tables[name]) * span, stop)
            self.evaluated[laws.no_aliasing.id] += 1
            conflict = self.memory.write(request, tables[name], request.computed, stop)
            if conflict is not None:
                slot, other = conflict
                two = {writer: tables[writer] for writer in (other, name)}
                self._check(laws.no_aliasing, laws.serving(slot, two, span), slot, size)
            written = tables[name][request.computed // span : -(-stop // span)]
            self._written.update(slot // size for slot in written)
        for name, request in self.live.items():
            self.evaluated[laws.write_isolation.id] += any(writer != name for writer in self.scheduled)
            self._read(request, tables, request.computed + request.pending)
        self._check_hit_was_not_free(tables)

    def _check_hit_was_not_free(self, tables: dict[str, list[int]]) -> None:
        """Of the request that was admitted with nothing done since free_now was asked for, and copied nothing.

        Its content was read before: a hit that is wrong says nothing about free_now.
        """
        request, self._first_hit = self._first_hit, None
        if request is None or request.name not in tables or self._free_before is None:
            return
        size = self.traits.block_size
        hit = {slot // size for slot in tables[request.name][: request.hit // size * size // self._span]} - self._held
        avail = self.traits.total - len(self._held) * size
        self._check(laws.free_count, self._free_before, avail, request.name, hit, size)

    def _check_lengths(self, tables: dict[str, list[int]]) -> None:
        if self._most_blocks is None or not tables:
            return
        name = max(tables, key=lambda name: len(tables[name]))
        blocks = self._blocks_for(len(tables[name]) * self._span)
        self._check(laws.table_limit, name, blocks, self._most_blocks, self.traits.max_length)

    def _read(self, request: Request, tables: dict[str, list[int]], stop: int) -> None:
        self.subject = request.name
        table = tables[request.name]
        self._check(laws.coverage, len(table) * self._span, stop)
        self.evaluated[laws.prefix_soundness.id] += 0 < request.hit <= stop
        self.evaluated[laws.content_equality.id] += stop > 0
        cell = self.memory.first_wrong(request, table, stop)
        if cell is None:
            return
        others = {name: table for name, table in tables.items() if name != request.name}
        cell = cell._replace(also=tuple(laws.serving(cell.slot, others, self._span)))
        require_right(request, cell, (laws.prefix_soundness, laws.write_isolation, laws.content_equality))

    def _commit(self, request: Request, accept: int) -> None:
        accepted = request.drafts[:accept]
        for token in accepted:
            self._call(self.adapter.append, request.name, token)
            request.tokens.append(token)
        n = request.pending - len(request.drafts) + len(accepted)
        self.reach["rejected_drafts"] += len(accepted) < len(request.drafts)
        request.drafts = []
        request.pending = 0
        request.admitted = False
        self.subject = request.name
        self._call(self.adapter.commit, request.name, n)
        request.computed += n
        self.reach["whole_blocks"] += request.computed % self.traits.block_size == 0

    def _copy(self, due: Sequence[tuple[int, int]], when: str = "") -> None:
        sources: dict[int, int] = {}
        for source, target in due:
            if sources.setdefault(target, source) != source:
                two = [f"a copy from slot {s}" for s in (sources[target], source)]
                self._check(laws.no_aliasing, two, target, self.traits.block_size)
        self.memory.copy(due, when)
        self.reach["copies"] += bool(due)
        self._first_hit = None if due else self._first_hit

    def _settle(self) -> None:
        """Between steps: asks the manager about itself in the order of `ask`, and checks everything that holds then."""
        ask, adapter = self.ask, self.adapter
        self.subject = None
        if self._unannounced is not None:
            raise Divergence(laws.event_consistency.id, self._unannounced)
        first: dict[str, Any] = {}
        if ask == "avail":
            first["avail"] = number(adapter.avail)
        elif ask == "free_now":
            first["free_now"] = number(adapter.free_now)
        tables = {name: self.places.table(name) for name in self.live}
        due = self.places.free_is_due()
        if ask == "free_now" and due:
            first["free_slots"] = self.places.free()
        free = self.places.free() if due else None
        avail = number(adapter.avail)
        free_now = number(adapter.free_now)
        again = {"avail": avail, "free_now": free_now, "free_slots": free}
        for what, answer in first.items():
            self._check(laws.purity, answer, again[what], what)
        if ask == "slots":
            for name in self.live:
                self._check(laws.purity, tables[name], self.places.table(name), "slots")
        before = self._held
        if not self.saw_growth:
            self.saw_growth = any(len(table) > self._lengths.get(name, len(table)) for name, table in tables.items())
            self._lengths = {name: len(table) for name, table in tables.items()}
        self.avail = avail
        self._check_tables(tables, free_now)
        size = self.traits.block_size
        held = len(self._held) * size
        if free is not None and (free is not self._free_checked or self._held is not before):
            self._check(laws.no_double_free, free, size)
            self._check(laws.eviction_safety, free, self._held, size, tables, self._span)
        self._check(laws.leak_freedom, avail, held, self.traits.total, list(self.live))
        self._check(laws.accounting, avail, held, self.traits.total)
        self._check(laws.free_count, free_now, avail, "", (), size)
        for request in self.live.values():
            self._read(request, tables, request.computed)
        if ask != "late":
            self._listen(Room(self._blocks_for(self.traits.total - free_now)))
        if free is not None:
            self.memory.poison(free)
        self._free_checked = free
        self._free_before = free_now
        # A manager may answer with the list that it works on.
        self._unchanged = tables if self.places.by_block else {name: table.copy() for name, table in tables.items()}
        self.saw_evictable = self.saw_evictable or avail > free_now
        self.subject = None

    def _listen(self, room: Room | None = None) -> None:
        """Takes in the events since the last time, each checked against those before it, then all against `room`."""
        if self.listener is None:
            return
        for event in events(self.adapter.events):
            self._check(laws.event_consistency, self.listener, event)
            self.listener.apply(event)
            self.reach["announced_removal"] += isinstance(event, BlockRemoved)
        if room is not None:
            self._check(laws.event_consistency, self.listener, room)

    def _check_tables(self, tables: dict[str, list[int]], free_now: int) -> None:
        size = self.traits.block_size
        before = self._held
        if not self.places.by_block or tables != self._settled:
            self._held = self._held_by(tables)
            self._check_lengths(tables)
            self._settled = tables
            self.places.forget_but(tables)
        self._freed = set() if self._held is before else (before | self._written) - self._held
        fresh = len(self._written - before)
        if self._free_before is not None:
            self.reach["eviction"] += fresh * size > self._free_before
            gained = fresh + (free_now - self._free_before) // size
            if gained > 0:
                self.evicted_blocks += max(0, gained - len((before | self._written) - self._held))
        self._written.clear()

    def _held_by(self, tables: dict[str, list[int]]) -> set[int]:
        """The blocks that live requests hold, tables and number of blocks checked; keeps the idle ones in order."""
        size = self.traits.block_size
        held: set[int] = set()
        for name, table in tables.items():
            known = self.places.known(name, table) if self.places.sparing else None
            if len(set(table) if known is None else known.slots) < len(table):
                self.subject = name
                twice = next(s for s in table if table.count(s) > 1)
                self._check(laws.no_aliasing, laws.serving(twice, {name: table}, self._span), twice, size)
            held.update((slot // size for slot in table) if known is None else known.blocks)
        self._blocks_seen |= held
        for block in held:
            self.idle_blocks.pop(block, None)
        for block in self._held - held:
            self.idle_blocks[block] = None
        self._check(laws.conservation, self._blocks_seen, self.traits.total, size)
        return held

    def _avail_before(self) -> int | None:
        return None if self.ask == "late" else number(self.adapter.avail)

    def _check_unchanged(self, before: int | None, what: str, appended: Request | None = None) -> None:
        """What a refusal may not change: avail, and the tables as they stood at the beginning of the step.

        Once an operation of this step was accepted nobody knows them: asking before each one would be a question that
        flushes lazy work, and any table may have been swapped meanwhile (rule 3). Then a request for which nothing is
        scheduled still has a slot for each token that it has computed. A request that a token was `appended` to may
        have taken a slot for it.
        """
        if before is not None:
            self._check(laws.atomicity, before, number(self.adapter.avail), what, "avail")
        for name, table in self._unchanged.items():
            after = self.places.table(name)
            if appended is not None and name == appended.name:
                after = after[: len(table)]
            self._check(laws.atomicity, table, after, what, f"the slots of {name}")
        if not self._unchanged:
            for request in self.live.values():
                needed = 0 if request.pending else request.computed
                left = min(needed, len(self.places.table(request.name)) * self._span)
                self._check(laws.atomicity, needed, left, what, f"the slots of computed tokens of {request.name}")

    def _check(self, law: Law[Any], *observed: Any) -> None:
        self.evaluated[law.id] += 1
        if (wrong := verdict(law, *observed)) is not None:
            raise Divergence(law.id, wrong)

    def _blocks_of(self, name: str) -> set[int]:
        return {slot // self.traits.block_size for slot in self.places.table(name)}

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.traits.block_size)

    def _notice_prompt(self, name: str, tokens: Sequence[int], extra_key: int | None) -> None:
        residue = len(tokens) % self.traits.block_size
        self.reach["length_0_mod_block"] += residue == 0
        self.reach["length_1_mod_block"] += residue == 1 % self.traits.block_size
        self.reach["length_-1_mod_block"] += residue == self.traits.block_size - 1
        self.reach["long_request"] += len(tokens) >= 9 * self.traits.block_size
        self.reach["extra_key"] += extra_key is not None
        twins = (self.live[s] for s in self.scheduled if self.live[s].admitted)
        self.reach["twins"] += any(t.tokens == list(tokens) and t.extra_key == extra_key for t in twins)

    def _notice_hit(self, request: Request) -> None:
        self.reach["hit"] += request.hit > 0
        size = self.traits.block_size
        full = len(request.tokens) % size == 0 and request.hit >= len(request.tokens) - size > 0
        self.reach["full_prompt_hit"] += full
