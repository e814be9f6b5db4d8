"""What users can do to a kv_scheduler: requests that share prefixes arrive, run, end and are aborted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.model import Factory, Goal, Model, Scope
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.kv_scheduler.operations import OPERATIONS
from kvlockstep.models.kv_scheduler.picture import picture
from kvlockstep.models.requests.adapter import as_state, make_adapter, named, not_checked
from kvlockstep.models.requests.answers import operate
from kvlockstep.models.requests.shrinking import by_request, plain_keys, smaller_pools, thinned, thinned_blocks, tidied
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN

PROMPT_KINDS = ("fresh", "repeat", "repeat", "longer", "longer", "shorter", "branch")
HISTORY = 6


@dataclass(frozen=True)
class SchedulerScope(Scope):
    """A pool under `live` requests at most; `budget` and `running` bound a batch, `outputs` a request's output."""

    blocks: int
    block_size: int
    budget: int
    running: int
    live: int
    outputs: int
    tokens: tuple[int, ...] = (1, 2)
    keys: tuple[int | None, ...] = (None,)
    priorities: tuple[int, ...] = (0, 1)
    exhaustive: bool = False


def _scopes() -> Iterable[SchedulerScope]:
    vocabularies = itertools.cycle(((1, 2), (1, 2, 3), (1, 257, 65537, 2**31 - 1, 2)))
    keys: Iterable[tuple[int | None, ...]] = itertools.cycle(((None,), (None, 0, 7)))
    sizes = [(3, 1), (4, 2), (5, 4), (8, 1), (6, 2), (4, 16), (12, 2), (10, 4), (24, 4), (16, 1)]
    for (blocks, size), words, names in zip(sizes, vocabularies, keys, strict=False):
        for budget in (size + 3, 2 * size + 1, blocks * size):
            yield SchedulerScope(blocks, size, max(budget, 4), 4, 5, blocks * size // 2, words, names)
        yield SchedulerScope(blocks, size, 2 * size + 2, 2, 4, size + 1, words, names)


class KVSchedulerModel(Model[SchedulerScope]):
    contract = "kv_scheduler"
    laws = laws.LAWS
    scope_type = SchedulerScope
    operations = OPERATIONS
    scopes = tuple(_scopes())
    small_scopes = (
        SchedulerScope(2, 1, 2, 2, 2, 1, (1,), priorities=(0,), exhaustive=True),
        SchedulerScope(3, 1, 3, 2, 2, 2, (1,), exhaustive=True),
        SchedulerScope(2, 2, 3, 2, 2, 2, (1, 2), exhaustive=True),
    )
    goals = (
        Goal("hit", "a request starts with cached tokens", "prefix_cache"),
        Goal("shared", "two live requests share a block", "prefix_cache"),
        Goal("eviction", "a batch takes more blocks than were free", "prefix_cache"),
        Goal("physical_reuse", "a slot is written by a second request"),
        Goal("chunk", "a prompt is computed in chunks"),
        Goal("mixed", "a batch has prompts and decodes", "mixes"),
        Goal("preempt", "a request is preempted", "preempts"),
        Goal("resume", "a preempted request comes back", "preempts"),
        Goal("resume_with_output", "a preempted request comes back with tokens that it has sampled", "preempts"),
        Goal("overlap", "a batch is scheduled while another is in flight", "overlap"),
        Goal("preempt_in_flight", "a request is preempted before its token has arrived", "overlap_preempts"),
        Goal("late_token", "a token arrives for a request that has ended", "ends_in_flight"),
        Goal("ended_by_token", "a request ends by its token"),
        Goal("ended_by_length", "a request ends by its length"),
        Goal("abort_waiting", "a request is aborted before it starts", "aborts"),
        Goal("abort_in_flight", "a request is aborted with its batch in flight", "aborts_in_flight"),
        Goal("abort_preempted", "a preempted request is aborted", "aborts_preempted"),
        Goal("drafts", "a batch has drafts", "drafts"),
        Goal("accepted_drafts", "some drafts are accepted", "drafts"),
        Goal("rejected_drafts", "some drafts are rejected", "drafts"),
        Goal("behind_accepted", "a request goes on behind accepted drafts in flight", "drafts_overlap"),
        Goal("behind_rejected", "a request goes on behind rejected drafts in flight", "drafts_overlap"),
        Goal("preempt_drafts", "a request is preempted with drafts in flight", "drafts_overlap_preempts"),
        Goal("late_drafts", "drafts arrive for a request that has ended", "drafts_overlap"),
        Goal("reset_live", "a reset sends requests back", "can_reset"),
        Goal("extra_key", "a request has an extra key", "extra_key"),
        Goal("drain", "every request is run to its end"),
    )

    def __init__(self, scope: SchedulerScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        adapter = make_adapter(factory, scope.blocks, scope.block_size, scope.budget, scope.running)
        self.judge = SchedulerJudge(adapter, scope.budget, scope.running)
        self.reach = self.judge.reach
        self.history: list[tuple[int, ...]] = []
        self._named = 0

    @command(4)
    def add(self, pick: Pick) -> Op:
        """A request arrives."""
        scope, traits = self.scope, self.judge.traits
        self._require(len(self.judge.live) < scope.live)
        longest = self.judge.longest
        tokens = self._prompt(pick, longest - 1)
        most = min(scope.outputs, longest - len(tokens))
        return Op(
            "add",
            request=f"r{self._named}",
            tokens=tokens,
            extra_key=pick(scope.keys) if traits.extra_key else None,
            max_tokens=pick(range(1, most + 1)) if scope.exhaustive else pick((1, most, most, 1 + most // 2)),
            priority=pick(scope.priorities) or None if traits.policy == "priority" else None,
        )

    @command(8)
    def schedule(self, pick: Pick) -> Op:
        """A batch is decided and launched."""
        self._require(len(self.judge.flights) < self.judge.traits.overlap and bool(self.judge.live))
        tokens = self._samples(pick)
        offered = max(len(job.offered) for job in self.judge.live.values())
        accept = {"accept": pick(range(offered + 1))} if offered else {}
        behind = {"drafts": self._samples(pick)[: self.judge.traits.drafts]} if self.judge.drafts_overlap else {}
        return Op("schedule", tokens=tokens, **accept, **behind)

    @command(8)
    def update(self, pick: Pick) -> Op:
        """The tokens of the oldest batch arrive."""
        self._require(bool(self.judge.flights))
        return Op("update")

    @command(1)
    def abort(self, pick: Pick) -> Op:
        """A request is aborted wherever it is."""
        self._require(self.judge.may_abort())
        return Op("abort", request=pick([name for name, job in self.judge.live.items() if not job.aborted]))

    @command(2)
    def draft(self, pick: Pick) -> Op:
        """Drafts are offered for a request that decodes."""
        name = pick(self.judge.may_draft())
        n = 1 if self.scope.exhaustive else pick(range(1, self.judge.traits.drafts + 1))
        return Op("draft", request=name, tokens=[pick(self.scope.tokens) for _ in range(n)])

    @command(1)
    def reset(self, pick: Pick) -> Op:
        """Every content is dropped."""
        self._require(self.judge.traits.can_reset and not self.judge.flights)
        self._require(self.scope.exhaustive or pick((False, False, True)))
        return Op("reset")

    @command(1)
    def drain(self, pick: Pick) -> Op:
        """Everything runs to its end."""
        self._require(bool(self.judge.live) and not self.judge.flights)
        self._require(self.scope.exhaustive or pick((False, False, True)))
        return Op("drain", tokens=self._samples(pick))

    @property
    def evaluated(self) -> Counter[str]:
        return self.judge.evaluated

    def forget(self) -> None:
        super().forget()
        self.judge.evaluated.clear()

    def step(self, op: Op) -> str:
        return self._execute(op)

    def redo(self, op: Op) -> None:
        self._execute(op)

    def sketch(self) -> Any:
        live = self.judge.live.values()
        return tuple((tuple(j.request.tokens), j.request.extra_key, j.request.computed, j.delivered) for j in live)

    def fingerprint(self) -> Any:
        """Requests by age and not by name, memory by history."""
        judge = self.judge
        names = {name: i for i, name in enumerate(judge.live)}
        jobs = tuple(
            (tuple(j.request.tokens), j.request.extra_key, j.max_tokens, j.rank[0], j.request.computed, j.delivered,
             j.fresh, j.preempted, j.aborted, tuple(j.offered), tuple(as_state(judge.places.table, name)))
            for name, j in judge.live.items()
        )  # fmt: skip
        flights = tuple(
            tuple((names.get(n, -1), flight.rejected.get(n), *t) for n, t in flight.gained.items())
            for flight in judge.flights
        )

        def queues() -> tuple[tuple[str, tuple[int, ...]], ...]:
            return tuple((q, tuple(names.get(n, -1) for n in rids)) for q, rids in judge.adapter.queues().items())

        return jobs, flights, as_state(queues), judge.memory.contents()

    def picture(self) -> Picture:
        return picture(self.judge)

    def not_checked(self) -> dict[str, str]:
        return not_checked(self.laws, self.judge.traits, self.judge.places)

    def unreachable(self) -> set[str]:
        traits = self.judge.traits
        has = {
            **vars(traits),
            "overlap": traits.overlap > 1,
            "overlap_preempts": traits.overlap > 1 and traits.preempts,
            "ends_in_flight": traits.overlap > 1 or traits.aborts == "any",
            "aborts_in_flight": traits.aborts == "any" or (traits.aborts and traits.overlap > 1),
            "aborts_preempted": traits.aborts and traits.preempts,
            "drafts_overlap": self.judge.drafts_overlap,
            "drafts_overlap_preempts": self.judge.drafts_overlap and traits.preempts,
        }
        unreachable = {g.id for g in self.goals if g.when and not has[g.when]}
        if not self.judge.saw_evictable or not self.judge.places.shows_free:
            unreachable.add("eviction")
        return unreachable

    def describe(self) -> dict[str, Any]:
        return {**named(self.judge.adapter), "traits": self.judge.traits}

    @classmethod
    def simpler_scopes(cls, scope: SchedulerScope) -> Iterable[SchedulerScope]:
        yield from smaller_pools(scope)
        for running in range(1, scope.running):
            yield replace(scope, running=running)
        for budget in sorted({scope.running, scope.budget // 2, scope.budget - 1}):
            if scope.running <= budget < scope.budget:
                yield replace(scope, budget=budget)

    @classmethod
    def smaller_at_once(cls, scope: SchedulerScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        return ((scope, plainer) for plainer in plain_keys(ops))

    @classmethod
    def smaller(cls, scope: SchedulerScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from super().smaller(scope, ops)
        yield from thinned_blocks(scope, ops)
        for ratio in (8, 4, 2):
            if scope.blocks >= 2 * ratio:
                yield replace(scope, blocks=-(-scope.blocks // ratio)), thinned(ops, ratio)

    @classmethod
    def parts(cls, ops: Sequence[Op]) -> list[set[int]]:
        return by_request(ops)

    @classmethod
    def tidy(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        return tidied(ops, kept=(END_TOKEN,))

    def _execute(self, op: Op) -> str:
        args = dict(op.args)
        name = args.pop("request", None)
        method = getattr(self.judge, op.name, None) if op.name in _OPERATIONS else None
        if method is None:
            raise NotEnabled
        leaving = list(self.judge.live.items())
        answer = operate(self.judge, self.avails, method, *([] if name is None else [name]), **args)
        self.evaluated[ERROR_CONTRACT.id] += 1
        self.evaluated[TERMINATION.id] += 1
        if op.name == "add":
            self._remember(args["tokens"])
            if name[1:].isdecimal():
                self._named = max(self._named, int(name[1:]) + 1)
        for gone, job in leaving:
            if gone not in self.judge.live:
                self._remember(job.request.tokens)
        return answer

    def _require(self, enabled: bool) -> None:
        if not enabled:
            raise NotEnabled

    def _remember(self, tokens: Sequence[int]) -> None:
        sequence = tuple(tokens)
        if sequence not in self.history:
            self.history.append(sequence)
            del self.history[:-HISTORY]

    def _samples(self, pick: Pick) -> list[int]:
        """What a batch samples: words, now and then the token that ends a request."""
        words = self.scope.tokens
        if self.scope.exhaustive:
            return [pick((*words, END_TOKEN))]
        return [pick((*words, *words, *words, END_TOKEN)) for _ in range(pick((1, 2, 3)))]

    def _prompt(self, pick: Pick, room: int) -> list[int]:
        scope = self.scope
        if scope.exhaustive:
            return list(pick([p for n in range(1, room + 1) for p in itertools.product(scope.tokens, repeat=n)]))
        kind = pick(PROMPT_KINDS) if self.history else "fresh"
        base = list(pick(self.history)) if kind != "fresh" else []
        if kind in ("shorter", "branch") and len(base) > 1:
            base = base[: self._length(pick, len(base) - 1)]
        if kind in ("repeat", "shorter") and base:
            return base[:room]
        more = self._length(pick, room - len(base)) if len(base) < room else 0
        return (base + [pick(scope.tokens) for _ in range(more)])[:room]

    def _length(self, pick: Pick, most: int) -> int:
        """A length from 1 to `most`, near a multiple of the block, oftener a short one."""
        size = self.scope.block_size
        blocks = most // size
        k = pick((0, 1, 1, 2, 2, 3, blocks // 2, blocks))
        return max(1, min(most, k * size + pick((-1, 0, 0, 1))))


_OPERATIONS = frozenset(c.name for c in KVSchedulerModel.commands)
