"""Plays request traces against a kv_manager under the judge: arrivals, chunks, decodes, preemption."""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.core.system import peak_megabytes
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.requests.answers import DONE, Answer
from kvlockstep.models.requests.block_memory import BlockMemory
from kvlockstep.models.requests.long_memory import LongSlotMemory
from kvlockstep.models.requests.request import Memory
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.reference.kv_manager.groups.contract import one_full
from kvlockstep.runs.mooncake import FIRST_OUTPUT_TOKEN, MooncakeRequest, prompt_tokens
from kvlockstep.runs.request_results import ReplayDivergence, RequestEvent, Summary

OUTPUT_TOKENS = 1 << 30
TAIL = 20


def play(
    requests: Iterable[MooncakeRequest],
    adapter: Any,
    *,
    step_ms: float = 30.0,
    prefill_budget: int = 8192,
    max_running: int = 256,
    ask: str = "avail",
    progress: Callable[[int, int], None] | None = None,
    on_event: Callable[[RequestEvent], None] | None = None,
) -> Summary:
    """Plays requests with overlapping lifetimes against a kv_manager, every law on.

    A request arrives at its timestamp and waits, first in first out, until there is room. Its prompt is computed in
    chunks, `prefill_budget` tokens a step for all requests together; then it decodes a token a step. A step takes
    `step_ms`; with nothing to do the clock jumps to the next arrival. A refused reservation preempts the youngest
    running request; preempted requests come back before new ones. At each step `progress` is told
    how many requests are through, and the number of steps so far.

    A manager that works in whole blocks and has `blocks(rid)`, its block table, is played with one stamp per block,
    else with one per slot; see `slot_entries` for what that takes. Either way every live request is checked in full at
    every forward and between steps.

    Raises ReplayDivergence.
    """
    player = _Player(adapter, step_ms, prefill_budget, max_running, ask)
    player.progress, player.on_event = progress, on_event
    return player.play(requests)


def has_block_tables(adapter: Any) -> bool:
    """Tells whether a manager is played with one stamp per block."""
    return callable(getattr(adapter, "blocks", None))


def lists_free_blocks(adapter: Any) -> bool:
    """Tells whether the free list of one that is played so is checked, and freed blocks are poisoned."""
    return callable(getattr(adapter, "free_blocks", None))


def slot_entries(request: MooncakeRequest) -> int:
    """About how many entries of its table are read while a request is played slot by slot: all of them at each step,
    in the forward and after it.
    """
    return (2 * request.input_length + request.output_length) * max(1, request.output_length)


def _memory_for(adapter: Any) -> Callable[..., Memory]:
    if has_block_tables(adapter):
        return BlockMemory
    return LongSlotMemory if getattr(adapter, "memory", None) is None else SlotMemory


@dataclass(order=True)
class _Entry:
    """A request on its way; ordered by arrival. `name` is what the judge knows it by, new after a refused admission."""

    arrival: int
    request: MooncakeRequest = field(compare=False)
    output: int = field(compare=False)
    attempts: int = field(default=0, compare=False)
    prompt: list[int] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return f"r{self.arrival}" + (f".{self.attempts}" if self.attempts else "")

    @property
    def target(self) -> int:
        """The tokens that are computed when the request finishes: the last one sampled never is."""
        return self.request.input_length + max(0, self.request.output_length - 1)


class _Player:
    """The scheduler. `_running` is sorted by arrival, oldest first."""

    def __init__(self, adapter: Any, step_ms: float, prefill_budget: int, max_running: int, ask: str) -> None:
        if step_ms <= 0 or prefill_budget < 1 or max_running < 1:
            raise UsageError(
                f"step_ms={step_ms}, prefill_budget={prefill_budget}, max_running={max_running}: all must be positive"
            )
        if getattr(adapter, "groups", ()) and not one_full(adapter.groups):
            raise UsageError("a request trace is played on a manager with one table a request, and this one has groups")
        if getattr(adapter, "tiers", None):
            raise UsageError("a request trace is played on a manager that admits at once, and this one has tiers")
        self.progress: Callable[[int, int], None] | None = None
        self.on_event: Callable[[RequestEvent], None] | None = None
        self._adapter = adapter
        self._judge = ManagerJudge(adapter, _memory_for(adapter), ask)
        self._step_ms = step_ms
        self._prefill_budget = prefill_budget
        self._max_running = max_running
        self._budget = 0
        self._clock = 0.0
        self._waiting: deque[_Entry] = deque()
        self._preempted: list[_Entry] = []
        self._running: list[_Entry] = []
        self._stalled = False
        self._tail: deque[tuple[str, str | None, dict[str, Any]]] = deque(maxlen=TAIL)
        self._outputs = 0
        self._arrived = self._finished = self._rejected = self._preemptions = 0
        self._prompt_tokens = self._hit_tokens = self._generated_tokens = self._steps = self._operations = 0
        self._began = time.perf_counter()

    def play(self, requests: Iterable[MooncakeRequest]) -> Summary:
        try:
            for request in requests:
                while self._busy() and self._clock < request.timestamp:
                    self._step()
                self._clock = max(self._clock, request.timestamp)
                self._arrive(request)
            while self._busy():
                self._step()
        except Divergence as divergence:
            raise self._located(divergence) from divergence
        return self._summary()

    def _busy(self) -> bool:
        return bool(self._running or self._preempted or self._waiting)

    def _arrive(self, request: MooncakeRequest) -> None:
        traits = self._judge.traits
        entry = _Entry(request.line, request, FIRST_OUTPUT_TOKEN + self._outputs % OUTPUT_TOKENS)
        self._arrived += 1
        self._outputs += request.output_length
        slots = max(entry.target, request.input_length + traits.output_reserve)
        fits = -(-slots // traits.block_size) * traits.block_size <= traits.total
        if not fits or (traits.max_length is not None and entry.target > traits.max_length):
            self._reject(entry)
        else:
            self._waiting.append(entry)

    def _step(self) -> None:
        self._budget = self._prefill_budget
        for entry in self._running.copy():
            if entry.name in self._judge.live:
                self._schedule(entry)
        self._admit_waiting()
        if self._judge.scheduled:
            self._do("forward", None, accept=None, abort=[], reverse=None)
            self._steps += 1
            if self.progress is not None:
                self.progress(self._finished + self._rejected, self._steps)
            for entry in self._running.copy():
                if self._judge.live[entry.name].computed >= entry.target:
                    self._finish(entry)
        self._clock += self._step_ms

    def _schedule(self, entry: _Entry) -> None:
        """The next chunk or token of a running request; makes room for it by preempting younger ones."""
        while not self._reserve(entry):
            youngest = self._running[-1]
            if len(self._running) == 1:
                self._do("abort", entry.name)
                self._running.clear()
                self._reject(entry)
                return
            self._preempt(youngest)
            if youngest is entry:
                return

    def _reserve(self, entry: _Entry) -> bool:
        """False if the manager refuses."""
        request = self._judge.live[entry.name]
        if request.remaining > 1:
            n = self._chunk(request.remaining)
            answer = self._do("chunk", entry.name, n=n) if n else DONE
            self._budget -= n if not answer.refused else 0
        else:
            token = entry.output + len(request.tokens) - entry.request.input_length
            answer = self._do("decode", entry.name, token=token, drafts=[])
        return not answer.refused

    def _chunk(self, tokens: int) -> int:
        """The part of `tokens` that the rest of the step's budget allows; a step's first chunk is never empty."""
        traits, whole_budget = self._judge.traits, self._budget == self._prefill_budget
        if tokens <= self._budget:
            return tokens
        if not traits.chunk:
            return tokens if whole_budget else 0
        n = max(0, self._budget) // traits.chunk_align * traits.chunk_align
        return n or (min(tokens, traits.chunk_align) if whole_budget else 0)

    def _admit_waiting(self) -> None:
        """Admits until a request is refused; asks again only after another one has left."""
        while (self._preempted or self._waiting) and len(self._running) < self._max_running and not self._stalled:
            entry = self._preempted[0] if self._preempted else self._waiting[0]
            n = self._chunk(self._known(entry)) if self._budget > 0 else 0
            if not n:
                return
            if self._ask_admission(entry, n):
                continue
            if self._running:
                self._stalled = True
                return
            self._next_in_line()
            self._reject(entry)

    def _known(self, entry: _Entry) -> int:
        return len(self._judge.preempted[entry.name].tokens) if self._preempted else entry.request.input_length

    def _next_in_line(self) -> _Entry:
        return self._preempted.pop(0) if self._preempted else self._waiting.popleft()

    def _ask_admission(self, entry: _Entry, n: int) -> bool:
        resumed = bool(self._preempted)
        if resumed:
            answer = self._do("resume", entry.name, n=n)
        else:
            entry.prompt = entry.prompt or prompt_tokens(entry.request)
            answer = self._do("admit", entry.name, tokens=entry.prompt, extra_key=None, n=n)
        if answer.refused:
            entry.attempts += not resumed
            return False
        self._next_in_line()
        insort(self._running, entry)
        request = self._judge.live[entry.name]
        self._budget -= request.pending
        if not resumed:
            entry.prompt = []
            self._prompt_tokens += entry.request.input_length
            self._hit_tokens += request.hit
        self._tell("resume" if resumed else "admit", entry, request.hit)
        return True

    def _preempt(self, entry: _Entry) -> None:
        computed = self._judge.live[entry.name].computed
        self._do("preempt", entry.name)
        self._running.remove(entry)
        insort(self._preempted, entry)
        self._preemptions += 1
        self._stalled = False
        self._tell("preempt", entry, computed)

    def _finish(self, entry: _Entry) -> None:
        self._do("finish", entry.name)
        self._running.remove(entry)
        self._stalled = False
        self._finished += 1
        self._generated_tokens += entry.request.output_length
        self._tell("finish", entry, entry.target)

    def _reject(self, entry: _Entry) -> None:
        self._rejected += 1
        self._stalled = False
        self._tell("reject", entry, 0)

    def _tell(self, kind: str, entry: _Entry, tokens: int) -> None:
        if self.on_event is not None:
            self.on_event(RequestEvent(kind, entry.request.line, self._clock, tokens))

    def _do(self, operation: str, name: str | None, **arguments: Any) -> Answer:
        self._tail.append((operation, name, arguments))
        self._operations += 1
        method = getattr(self._judge, operation)
        answer: Answer = method(**arguments) if name is None else method(name, **arguments)
        return answer

    def _located(self, divergence: Divergence) -> ReplayDivergence:
        """The divergence with its request: the one that the judge was looking at, else that of the operation."""
        name = self._judge.subject or (self._tail[-1][1] if self._tail else None)
        entries = [*self._running, *self._preempted, *self._waiting]
        request = next((entry.request for entry in entries if entry.name == name), None)
        return ReplayDivergence(divergence, request, tuple(_op(*call) for call in self._tail), self._summary())

    def _summary(self) -> Summary:
        judge = self._judge
        own = getattr(self._adapter, "evictions", None)
        evictions, by = (own, "manager") if isinstance(own, int) else (judge.occupancy.evicted, "judge")
        return Summary(
            requests=self._arrived,
            rejected=self._rejected,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            hit_tokens=self._hit_tokens,
            evictions=evictions,
            evictions_by=by,
            preemptions=self._preemptions,
            refusals=judge.goals_met["refused_admission"] + judge.goals_met["refused_reserve"],
            steps=self._steps,
            operations=self._operations,
            clock=self._clock,
            seconds=time.perf_counter() - self._began,
            peak_memory=peak_megabytes(),
            granularity=judge.memory.granularity,
        )


def _op(operation: str, name: str | None, arguments: dict[str, Any]) -> Op:
    plain = {k: len(v) if k == "tokens" else v for k, v in arguments.items()}
    return Op(operation, **({} if name is None else {"request": name}), **plain)
