"""Model of kv_scheduler: requests that share prefixes arrive, run, end and are aborted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from kvlockstep.models.core.model import Factory, Scope
from kvlockstep.models.core.op import Op, Pick, command, one_in, require
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_scheduler.goals import GOALS, unreachable
from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge
from kvlockstep.models.kv_scheduler.groups.picture import picture_of_groups
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.kv_scheduler.operations import OPERATIONS
from kvlockstep.models.kv_scheduler.picture import picture
from kvlockstep.models.requests.adapter import as_state, declares_groups, make_adapter, read_traits
from kvlockstep.models.requests.answers import Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.model import RequestModel
from kvlockstep.models.requests.prompts import HISTORY, all_prompts, length_near_block
from kvlockstep.models.requests.shrinking import thinned
from kvlockstep.models.requests.transfers.commands import TransferCommands
from kvlockstep.properties.kv_scheduler import LAWS
from kvlockstep.properties.law import Law
from kvlockstep.reference.kv_manager.groups.contract import one_full
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits

GROUP_TRAITS = {"groups", "frees_window"}
# Nothing is said of their laws to a target without.
BY_TRAIT = {"durable", "event_listener", "moves"}
PROMPT_KINDS = ("fresh", "repeat", "repeat", "longer", "longer", "shorter", "branch")


@dataclass(frozen=True)
class SchedulerScope(Scope):
    """A pool under `live` requests at most; `budget` and `running` bound a batch, `outputs` a request's output."""

    blocks: int
    block_size: int
    _: KW_ONLY
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
            wide = SchedulerScope(blocks, size, budget=max(budget, 4), running=4, live=5, outputs=blocks * size // 2)
            yield replace(wide, tokens=words, keys=names)
        narrow = SchedulerScope(blocks, size, budget=2 * size + 2, running=2, live=4, outputs=size + 1)
        yield replace(narrow, tokens=words, keys=names)


# What windows and states go through in few operations: one word, and requests longer than a window.
GROUP_SCOPES = (
    SchedulerScope(3, 2, budget=3, running=2, live=2, outputs=2, tokens=(1,), priorities=(0,), exhaustive=True),
    SchedulerScope(4, 1, budget=4, running=1, live=1, outputs=2, tokens=(1,), priorities=(0,), exhaustive=True),
    SchedulerScope(2, 2, budget=2, running=1, live=1, outputs=2, tokens=(1,), priorities=(0,), exhaustive=True),
)


class KVSchedulerModel(RequestModel[SchedulerScope], TransferCommands):
    contract = "kv_scheduler"
    laws = LAWS
    scope_type = SchedulerScope
    operations = OPERATIONS
    scopes = tuple(_scopes())
    small_scopes = (
        SchedulerScope(2, 1, budget=2, running=2, live=2, outputs=1, tokens=(1,), priorities=(0,), exhaustive=True),
        SchedulerScope(3, 1, budget=3, running=2, live=2, outputs=2, tokens=(1,), exhaustive=True),
        SchedulerScope(2, 2, budget=3, running=2, live=2, outputs=2, exhaustive=True),
    )
    kept_tokens = (END_TOKEN,)
    judge: SchedulerJudge
    goals = GOALS

    def __init__(self, scope: SchedulerScope, factory: Factory) -> None:
        adapter = make_adapter(factory, scope.blocks, scope.block_size, scope.budget, scope.running)
        super().__init__(scope, factory, judge_of(adapter, scope, Checks(self.laws)))
        self.history: list[tuple[int, ...]] = []

    @classmethod
    def small_scopes_of(cls, factory: Factory) -> tuple[Scope, ...]:
        return (*(GROUP_SCOPES if declares_groups(factory, cls.contract) else ()), *cls.small_scopes)

    @command(4, when=lambda self, _: len(self.judge.live) < self.scope.live)
    def add(self, pick: Pick) -> Op:
        """A request arrives."""
        scope, traits = self.scope, self.judge.traits
        longest = self.judge.longest
        tokens, key = self._kept(pick, longest - 1) or (self._prompt(pick, longest - 1), self._key(pick))
        most = min(scope.outputs, longest - len(tokens))
        return Op(
            "add",
            request=f"r{self._named}",
            tokens=tokens,
            extra_key=key,
            max_tokens=pick(range(1, most + 1)) if scope.exhaustive else pick((1, most, most, 1 + most // 2)),
            priority=pick(scope.priorities) or None if traits.policy == "priority" else None,
        )

    @command(8)
    def schedule(self, pick: Pick) -> Op:
        """A batch is decided and launched."""
        tokens = self._samples(pick)
        offered = max(len(job.offered) for job in self.judge.live.values())
        accept = {"accept": pick(range(offered + 1))} if offered else {}
        behind = {"drafts": self._samples(pick)[: self.judge.traits.drafts]} if self.judge.drafts_overlap else {}
        return Op("schedule", tokens=tokens, **accept, **behind, **self._lost(pick))

    @command(8)
    def update(self, pick: Pick) -> Op:
        """The tokens of the oldest batch arrive."""
        return Op("update")

    @command(1)
    def abort(self, pick: Pick) -> Op:
        """A request is aborted wherever it is."""
        return Op("abort", request=pick([name for name, job in self.judge.live.items() if not job.aborted]))

    @command(2)
    def draft(self, pick: Pick) -> Op:
        """Drafts are offered for a request that decodes."""
        name = pick(self.judge.draftable())
        n = 1 if self.scope.exhaustive else pick(range(1, self.judge.traits.drafts + 1))
        return Op("draft", request=name, tokens=[pick(self.scope.tokens) for _ in range(n)])

    @command(1)
    def reset(self, pick: Pick) -> Op:
        """Every content is dropped."""
        # With tiers something is in flight nearly always, and then most targets allow none. What can be reset is.
        live = self.judge.transfers is not None and any(not job.fresh for job in self.judge.live.values())
        require(self.scope.exhaustive or live or one_in(3, pick))
        return Op("reset")

    @command(1)
    def drain(self, pick: Pick) -> Op:
        """Everything runs to its end."""
        require(self.scope.exhaustive or one_in(3, pick))
        return Op("drain", tokens=self._samples(pick))

    complete, fail, tear = TransferCommands.complete, TransferCommands.fail, TransferCommands.tear

    @command(1, when=lambda self, _: not self.scope.exhaustive, needs="tiers")
    def abort_loading(self, pick: Pick) -> Op:
        """A request is aborted that waits for a load."""
        require(self.judge.allows("abort") and self.judge.transfers is not None)
        loading = self.judge.transfers.loading() if self.judge.transfers else set()
        return Op("abort", request=pick([n for n, job in self.judge.live.items() if n in loading and not job.aborted]))

    poll = TransferCommands.poll

    @command(2, needs="peer")
    def offer(self, pick: Pick) -> Op:
        """Another instance fills its tier with a prefix."""
        tokens = self._prompt(pick, self.judge.longest - 1)
        require(len(tokens) >= self.scope.block_size)
        return Op("offer", tokens=tokens, extra_key=self._key(pick))

    lose = TransferCommands.lose

    @classmethod
    def laws_in_play(cls, evaluated: Mapping[str, int]) -> tuple[Law[Any], ...]:
        # A target without tiers is spoken of as if there were no transfers, one without groups likewise.
        transfers = any(evaluated.get(law.id) for law in cls.laws if "tiers" in law.needs)
        groups = any(evaluated.get(law.id) for law in cls.laws if GROUP_TRAITS & set(law.needs))
        laws = (law for law in cls.laws if transfers or "tiers" not in law.needs)
        laws = (law for law in laws if groups or not GROUP_TRAITS & set(law.needs))
        return tuple(law for law in laws if not BY_TRAIT & set(law.needs) or evaluated.get(law.id))

    def not_checked(self) -> dict[str, str]:
        known = {law.id for law in self.laws if self.judge.transfers is not None or "tiers" not in law.needs}
        lacks = {trait for trait in BY_TRAIT if not getattr(self.judge.traits, trait)}
        known -= {law.id for law in self.laws if lacks & set(law.needs)}
        if not self.judge.grouped:
            known -= {law.id for law in self.laws if GROUP_TRAITS & set(law.needs)}
        found = {law: why for law, why in self.judge.lacking().items() if law in known}
        if self.judge.transfers is not None and self.judge.traits.ordered:
            found["stream_order"] = "the target declares ordered"
        return found

    def sketch(self) -> Any:
        live = self.judge.live.values()
        return tuple((tuple(j.request.tokens), j.request.extra_key, j.request.computed, j.delivered) for j in live)

    def fingerprint(self) -> Any:
        """Requests by age and not by name, memory by history."""
        judge = self.judge
        names = {name: i for i, name in enumerate(judge.live)}
        jobs = tuple(
            (tuple(j.request.tokens), j.request.extra_key, j.max_tokens, j.rank[0], j.request.computed, j.delivered,
             j.fresh, j.preempted, j.aborted, tuple(j.offered), judge.table_of(name))
            for name, j in judge.live.items()
        )  # fmt: skip
        flights = tuple(
            tuple((names.get(n, -1), flight.rejected.get(n), *t) for n, t in flight.gained.items())
            for flight in judge.flights
        )

        def queues() -> tuple[tuple[str, tuple[int, ...]], ...]:
            return tuple((q, tuple(names.get(n, -1) for n in rids)) for q, rids in judge.adapter.queues().items())

        state = jobs, flights, as_state(queues), judge.contents_of_memory()
        if judge.transfers is None:
            return state
        overtaken = sorted((names[a], names[b]) for a, b in judge.overtaken if a in names and b in names)
        return *state, as_state(judge.transfers.state), tuple(overtaken)

    def picture(self) -> Picture:
        judge = self.judge
        return picture_of_groups(judge) if isinstance(judge, GroupedSchedulerJudge) else picture(judge)

    def unreachable(self) -> set[str]:
        judge = self.judge
        saw_evictable = judge.saw_evictable and judge.shows_free
        never = unreachable(judge.traits, saw_evictable, judge.transfers, judge.listening, judge.grouped)
        return never | judge.unreachable() if isinstance(judge, GroupedSchedulerJudge) else never

    @classmethod
    def simpler_scopes(cls, scope: SchedulerScope) -> Iterable[Scope]:
        yield from super().simpler_scopes(scope)
        for running in range(1, scope.running):
            yield replace(scope, running=running)
        # A batch that cannot hold a block is no batch of an engine which computes whole blocks: it would wait for ever.
        least = max(scope.running, scope.block_size)
        for budget in sorted({least, scope.budget // 2, scope.budget - 1}):
            if least <= budget < scope.budget:
                yield replace(scope, budget=budget)

    @classmethod
    def smaller(cls, scope: SchedulerScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from super().smaller(scope, ops)
        for ratio in (8, 4, 2):
            if scope.blocks >= 2 * ratio:
                yield replace(scope, blocks=-(-scope.blocks // ratio)), thinned(ops, ratio)

    def execute(self, op: Op) -> Answer:
        leaving = list(self.judge.live.items())
        answer = super().execute(op)
        if op.name in ("add", "offer"):
            self._remember(op.args["tokens"])
        for gone, job in leaving:
            if gone not in self.judge.live:
                self._remember(job.request.tokens)
        return answer

    def _lost(self, pick: Pick) -> dict[str, int]:
        """Whether a load that the batch waits for fails; asked of schedulers that have had one."""
        transfers = self.judge.transfers
        if transfers is None or not transfers.has_own or "load" not in transfers.fallible:
            return {}
        if self.scope.exhaustive:
            return pick(({}, {"lost": 0}))
        return {"lost": pick((0, 1, 2))} if one_in(2, pick) else {}

    def _remember(self, tokens: Sequence[int]) -> None:
        sequence = tuple(tokens)
        if sequence not in self.history:
            self.history.append(sequence)
            del self.history[:-HISTORY]

    def _samples(self, pick: Pick) -> list[int]:
        """Tokens that a batch samples: words, and at times the token that ends a request."""
        words = self.scope.tokens
        if self.scope.exhaustive:
            return [pick((*words, END_TOKEN))]
        return [pick((*words, *words, *words, END_TOKEN)) for _ in range(pick((1, 2, 3)))]

    def _prompt(self, pick: Pick, room: int) -> list[int]:
        scope = self.scope
        if scope.exhaustive:
            return list(pick(all_prompts(scope.tokens, room)))
        kind = pick(PROMPT_KINDS) if self.history else "fresh"
        base = list(pick(self.history)) if kind != "fresh" else []
        if kind in ("shorter", "branch") and len(base) > 1:
            base = base[: self._length(pick, len(base) - 1)]
        if kind in ("repeat", "shorter") and base:
            return base[:room]
        more = self._length(pick, room - len(base)) if len(base) < room else 0
        return (base + [pick(scope.tokens) for _ in range(more)])[:room]

    def _key(self, pick: Pick) -> int | None:
        return pick(self.scope.keys) if self.judge.traits.extra_key else None

    def _length(self, pick: Pick, most: int) -> int:
        """A length from 1 to `most`, near a multiple of the block, more often a short one."""
        size = pick(self.judge.sizes) if self.judge.grouped else self.scope.block_size
        blocks = most // size
        return length_near_block(pick, most, size, (0, 1, 1, 2, 2, 3, blocks // 2, blocks))


def judge_of(adapter: Any, scope: SchedulerScope, checks: Checks) -> SchedulerJudge:
    """The judge of a target: of one table a request, or of groups. Raises Divergence if its traits cannot be read."""
    grouped = getattr(adapter, "groups", ()) and not one_full(read_traits(adapter, SchedulerTraits).groups)
    kind = GroupedSchedulerJudge if grouped else SchedulerJudge
    return kind(adapter, scope.budget, scope.running, checks)
