"""The judge of kv_index: workers that send events, the index that hears them, and what it must know by then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.model import Factory
from kvlockstep.models.core.op import require
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import whole
from kvlockstep.models.kv_index import goals
from kvlockstep.models.kv_index.questions import Question, Questions
from kvlockstep.models.kv_index.recorded import BlockNumbers, RecordedWorker
from kvlockstep.models.kv_index.worker import Worker
from kvlockstep.models.requests.adapter import answered, make_adapter, read_traits
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties.kv_index import laws
from kvlockstep.properties.kv_index.heard import Heard, Message
from kvlockstep.properties.law import Law
from kvlockstep.reference.kv_index.contract import IndexTraits, WorkerSnapshot
from kvlockstep.reference.kv_index.index import Prefix
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event

# (keys, parent, tokens, extra key) of a store.
Stored = tuple[Sequence[int], int | None, Sequence[int], Any]


class IndexJudge:
    """Has a method for each operation, of its name, which returns the text of its answer.

    Each raises NotEnabled, and changes nothing, where the operation cannot be; Divergence where a law does not hold.
    `extra_keys` are those under which the sequence of an event is asked for.
    """

    def __init__(
        self,
        factory: Factory,
        block_size: int,
        workers: int,
        extra_keys: Sequence[Any],
        always: Iterable[Question] = (),
        checks: Checks | None = None,
    ) -> None:
        self._factory, self._size = factory, block_size
        self.adapter = make_adapter(factory, block_size)
        self.traits: IndexTraits = read_traits(self.adapter, IndexTraits)
        self._extra_keys = [key for key in extra_keys if key is None or self.traits.extra_key]
        self._names: dict[Prefix, int] = {}
        self._numbers = BlockNumbers(block_size)
        self.workers = [self._new_worker(name) for name in range(workers)]
        self.heard: list[Heard] = [Heard(block_size, self.traits) for _ in range(workers)]
        self.checks = checks or Checks()
        self.goals_met: Counter[str] = Counter()
        usable = [(tokens, key) for tokens, key in always if key in self._extra_keys]
        self.questions = Questions(self.heard, self.checks, self.adapter, usable)

    # ---- what happens to a worker ----

    def store(self, worker: int, tokens: list[int], first: int, extra_key: Any = None, lost: bool | None = None) -> str:
        """A worker caches a sequence, and announces its blocks from `first` on."""
        require(extra_key is None or self.traits.extra_key)
        cache = self._worker(worker)
        blocks, copies = cache.blocks_of(tokens, extra_key), {*cache.copies}
        message = cache.store(blocks, first)
        goals.notice_store(self.goals_met, cache, message, copies, self.workers)
        return self._sent(cache, tokens, lost)

    def evict(self, worker: int, tokens: list[int], n: int, extra_key: Any = None, lost: bool | None = None) -> str:
        """A worker drops a copy of each of the last `n` blocks of a sequence, children first."""
        cache = self._worker(worker)
        copies = {*cache.copies}
        message = cache.evict(cache.blocks_of(tokens, extra_key), n)
        goals.notice_removal(self.goals_met, cache, message, copies)
        return self._sent(cache, tokens, lost)

    def clear(self, worker: int, lost: bool | None = None) -> str:
        """A worker drops everything."""
        cache = self._worker(worker)
        self.goals_met["cleared"] += bool(cache.copies) and not lost
        self.goals_met["cleared_in_gap"] += self.heard[worker].gap and not lost
        cache.clear()
        return self._sent(cache, [], lost)

    def leave(self, worker: int) -> str:
        """A worker leaves. The next of its name has an empty cache, and counts its events and keys from 0."""
        self.goals_met["left"] += bool(self._worker(worker).copies)
        answered(self.adapter.remove, worker)
        self.workers[worker] = self._new_worker(worker, lives=self.workers[worker].lives + 1)
        self.heard[worker] = self.heard[worker].again()
        self._ask_again(worker, laws.clear_heard)
        return ""

    # ---- what happens to events ----

    def repeat(self, worker: int, number: int) -> str:
        """An event arrives that was lost, or again."""
        cache, heard = self._worker(worker), self.heard[worker]
        require(0 <= number < len(cache.sent))
        if not heard.is_old(number):
            return self._deliver(worker, number, cache.sent[number])[0]
        return self._old(worker, number, cache.sent[number])

    def resync(self, worker: int) -> str:
        """The router asks a worker for its whole cache."""
        require(self.traits.can_resync)
        cache = self._worker(worker)
        messages = cache.snapshot()
        number = len(cache.sent) - 1
        orphans = bool(messages) and isinstance(messages[-1].event, BlockRemoved)
        self.goals_met["resynchronised"] += self.heard[worker].gap
        self.goals_met["resynchronised_orphan"] += orphans
        return self._resynced(worker, number, self.heard[worker].again(number), messages)

    # ---- what was recorded ----

    def stored(
        self, worker: int, number: int, keys: list[int], parent: int | None, tokens: list[int], extra_key: Any = None
    ) -> str:
        """A store of a recording arrives."""
        require(extra_key is None or self.traits.extra_key)
        return self._recorded(worker, number, BlockStored(tuple(keys), parent, tuple(tokens), self._size, extra_key))

    def removed(self, worker: int, number: int, keys: list[int]) -> str:
        """A removal of a recording arrives."""
        return self._recorded(worker, number, BlockRemoved(tuple(keys)))

    def cleared(self, worker: int, number: int) -> str:
        """A clear of a recording arrives."""
        return self._recorded(worker, number, AllBlocksCleared())

    def resynced(self, worker: int, number: int, stored: list[Stored], removed: list[int]) -> str:
        """A resynchronisation of a recording."""
        require(self.traits.can_resync)
        heard = self._recorded_worker(worker).again(number)
        events: list[Event] = [
            BlockStored(tuple(keys), parent, tuple(tokens), self._size, extra_key)
            for keys, parent, tokens, extra_key in stored
        ]
        events += [BlockRemoved(tuple(removed))] if removed else []
        return self._resynced(worker, number, heard, [heard.message(event) for event in events])

    def _recorded(self, worker: int, number: int, event: Event) -> str:
        heard = self._recorded_worker(worker)
        message = heard.message(event)
        return self._old(worker, number, message) if heard.is_old(number) else self._deliver(worker, number, message)[0]

    def _recorded_worker(self, name: int) -> RecordedWorker:
        """A recording does not say beforehand how many workers it has: each is new with its first event."""
        require(0 <= name <= len(self.workers))
        if name == len(self.workers):
            self.workers.append(self._new_worker(name))
            self.heard.append(Heard(self._size, self.traits))
        heard = self.heard[name]
        if not isinstance(heard, RecordedWorker):
            require(not self.workers[name].sent)
            heard = self.heard[name] = RecordedWorker(self._size, self.traits, self._numbers)
        return heard

    # ---- what happens to the router ----

    def reload(self) -> str:
        """The router starts again: a new index is fed with the snapshot of the old one, and takes its place."""
        require(self.traits.can_snapshot and self.traits.can_resync)
        rows = self._snapshot()
        self.adapter = make_adapter(self._factory, self._size)
        for row in rows:
            answered(self.adapter.resync, *row)
        self.goals_met["reloaded"] += any(self.questions.answers.values())
        self._ask_again(None, laws.snapshot_exact)
        return f"{len(rows)} worker{'' if len(rows) == 1 else 's'}"

    def lookup(self, tokens: list[int], extra_key: Any = None) -> str:
        """A sequence is asked for."""
        require(tokens and (extra_key is None or self.traits.extra_key))
        answers = self._ask(tokens, extra_key)
        return ", ".join(f"worker {worker}: {n}" for worker, n in sorted(answers.items())) or "nobody"

    # ---- the way of an event ----

    def _old(self, worker: int, number: int, message: Message) -> str:
        """An event arrives behind its successor."""
        require(self.traits.ignores_old)
        self.goals_met["old" if number in self.workers[worker].arrived else "late"] += 1
        self._apply(worker, number, message)
        self._ask_again(None, laws.duplicate_harmless)
        return f"event {number}, old"

    def _resynced(self, worker: int, number: int, heard: Heard, messages: Sequence[Message]) -> str:
        answered(self.adapter.resync, worker, number, [message.event for message in messages])
        self.heard[worker] = heard
        for message in messages:
            heard.take(message)
        self._ask_again(worker, laws.index_exact)
        return f"behind event {number}"

    def _worker(self, name: int) -> Worker:
        require(0 <= name < len(self.workers))
        return self.workers[name]

    def _new_worker(self, name: int, lives: int = 0) -> Worker:
        keys = self._names if self.traits.shared_keys else {}
        return Worker(name, self._size, self.traits.event_listener == "counting", keys, lives)

    def _sent(self, cache: Worker, tokens: Sequence[int], lost: bool | None) -> str:
        """The last event of a worker is lost, or arrives at once; then its sequence is asked for."""
        number = len(cache.sent) - 1
        text, law = (f"event {number} is lost", None) if lost else self._deliver(cache.name, number, cache.sent[number])
        # New questions come last: what the event does to the answers so far says more.
        for key in self._extra_keys if len(tokens) >= self._size else ():
            self._ask(tokens, key, cache.name, law)
        return text

    def _deliver(self, worker: int, number: int, message: Message) -> tuple[str, Law[Any]]:
        """An event arrives that is not old. Returns the text of it, and the law that judges what it did."""
        cache, heard = self.workers[worker], self.heard[worker]
        last = heard.last
        unknown_parent = isinstance(message.event, BlockStored) and not heard.knows_parent(message)
        told = self._apply(worker, number, message)
        if self.traits.tells_gaps and last is not None:
            self.checks.check(laws.gap_once, worker, number, last, told)
        goals.notice_arrival(self.goals_met, cache, heard, number, message, unknown_parent)
        missed = heard.misses(number)
        heard.arrives(number, message)
        law = self.questions.bounding(worker)
        if unknown_parent:
            law = laws.parent_first
        elif not isinstance(message.event, (BlockStored, BlockRemoved)):
            law = laws.clear_heard
        grown = self._ask_again(worker, law)
        self.goals_met["orphan_found"] += isinstance(message.event, BlockStored) and grown > len(message.prefixes)
        return f"event {number}{', behind a gap' if missed else ''}", law

    def _apply(self, worker: int, number: int, message: Message) -> Any:
        self.workers[worker].arrived.add(number)
        return answered(self.adapter.apply, worker, number, message.event)

    def _ask(
        self, tokens: Sequence[int], extra_key: Any, of: int | None = None, law: Law[Any] | None = None
    ) -> dict[Any, int]:
        answers = self.questions.ask(self.adapter, tuple(tokens), extra_key, of, law)
        goals.notice_answers(self.goals_met, tokens, extra_key, answers, self.questions.answers, self._size)
        return answers

    def _ask_again(self, of: int | None, law: Law[Any]) -> int:
        return self.questions.ask_again(self.adapter, of, law)

    def _snapshot(self) -> list[WorkerSnapshot]:
        answer = answered(self.adapter.snapshot)

        def rows() -> list[WorkerSnapshot]:
            return [
                WorkerSnapshot(worker, whole(number), list(bounded(events)))
                for worker, number, events in bounded(answer)
            ]

        return taken(rows, answer, self.adapter.snapshot, "(worker, number, events) for each worker")
