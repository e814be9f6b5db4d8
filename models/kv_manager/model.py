"""Model of kv_manager: prompts that share prefixes, chunks, drafts, forks, preemptions and aborts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kvlockstep.models.core.model import Factory, Scope, simpler_args
from kvlockstep.models.core.op import Command, Op, Pick, command, one_in, require
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_manager.forks import LOOK_UP, Forks
from kvlockstep.models.kv_manager.goals import GOALS, unreachable
from kvlockstep.models.kv_manager.groups.judge import GroupedJudge
from kvlockstep.models.kv_manager.groups.picture import picture_of_groups
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.loading_commands import LoadingCommands
from kvlockstep.models.kv_manager.operations import OPERATIONS
from kvlockstep.models.kv_manager.picture import picture
from kvlockstep.models.kv_manager.prompts import Prompts
from kvlockstep.models.kv_manager.scope import GROUP_SCOPES, SMALL_SCOPES, TIER_SCOPES, KVScope, Mode, scopes
from kvlockstep.models.kv_manager.shortcuts import shortcuts
from kvlockstep.models.requests.adapter import as_state, declares_groups, declares_tiers, make_adapter, read_traits
from kvlockstep.models.requests.answers import Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.model import RequestModel
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.shrinking import less_room, without_forks
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.properties.kv_manager.laws import LAWS
from kvlockstep.properties.kv_manager.loading import load_ends, promise_kept
from kvlockstep.properties.law import Law
from kvlockstep.reference.kv_manager.groups.contract import one_full
from kvlockstep.reference.kv_manager.traits import Traits

GROUP_TRAITS = {"groups", "frees_window"}
# What is asked of a request that waits for its load.
OF_WAITING = {load_ends.id, promise_kept.id}


class KVManagerModel(RequestModel[KVScope], LoadingCommands):
    """`memory_type` makes the KV memory: with one stamp per slot, or BlockMemory with one per block."""

    contract = "kv_manager"
    laws = LAWS
    goals = GOALS
    scope_type = KVScope
    operations = OPERATIONS
    scopes = tuple(scopes())
    small_scopes = SMALL_SCOPES
    memory_type: ClassVar[Any] = SlotMemory
    judge: ManagerJudge

    def __init__(self, scope: KVScope, factory: Factory) -> None:
        adapter = make_adapter(factory, scope.blocks, scope.block_size)
        super().__init__(scope, factory, judge_of(adapter, self.memory_type, scope.ask, Checks(self.laws)))
        self.prompts = Prompts(scope, self.judge)
        self.forks = Forks(scope, self.judge)
        self._size = self.judge.traits.block_size
        self._resumed: set[str] = set()

    @classmethod
    def small_scopes_of(cls, factory: Factory) -> tuple[Scope, ...]:
        groups = GROUP_SCOPES if declares_groups(factory, cls.contract) else ()
        return (*groups, *(TIER_SCOPES if declares_tiers(factory, cls.contract) else ()), *cls.small_scopes)

    def propose(self, command: Command, pick: Pick) -> Op:
        require(self.judge.allows(command.name))
        require(command.when is None or command.when(self, pick))
        # Behind the conditions: a command that cannot come now must not use up a choice.
        require(self.forks.follows_script(command.name, pick))
        return command.propose(self, pick)

    @command(6, when=lambda self, _: self.has_room)
    def admit(self, pick: Pick) -> Op:
        """A new request asks for admission."""
        kept = self._kept(pick, self.prompts.longest)
        tokens, key = kept or self.prompts.propose(pick, self.forks.script == LOOK_UP)
        name = self._new_name(pick, self.judge.live)
        return Op("admit", request=name, tokens=tokens, extra_key=key, n=self._chunk_of(pick, len(tokens)))

    @command(2, when=lambda self, _: self.has_room)
    def resume(self, pick: Pick) -> Op:
        """A preempted request comes back."""
        waiting = list(self.judge.preempted)
        name = pick(waiting if self.scope.exhaustive else [*waiting, *waiting[-1:]])
        return Op("resume", request=name, n=self._chunk_of(pick, len(self.judge.preempted[name].tokens)))

    @command(2)
    def chunk(self, pick: Pick) -> Op:
        """The next part of a prompt is scheduled."""
        idle = [r for r in self._idle() if r.remaining and (r.loaded or (self.judge.traits.chunk and r.computed))]
        request = pick([*idle, *self.forks.urgent(idle)])
        return Op("chunk", request=request.name, n=self._chunk_of(pick, request.remaining))

    @command(6, when=lambda self, _: self.can_schedule)
    def decode(self, pick: Pick) -> Op:
        """A token is sampled and scheduled, perhaps with drafts behind it."""
        traits = self.judge.traits
        longest = traits.max_length or 10**9
        idle = [r for r in self._idle() if r.remaining <= 1 and r.computed < longest]
        request = pick([*idle, *self.forks.urgent(idle)])
        most = min(traits.tokens_per_decode or 10**9, longest - request.computed) - 1
        # The widest drafts cross two ends of blocks, in large pools of small blocks many.
        wide = 12 if self.scope.blocks > 12 and self._size == 1 else 2
        widths = (0, 0, 0, 1, 2, self._size, wide * self._size)
        width = pick([k for k in widths if k <= most]) if most > 0 and not self.scope.exhaustive else 0
        return Op(
            "decode",
            request=request.name,
            token=pick(self.scope.tokens),
            drafts=[pick(self.scope.tokens) for _ in range(width)],
        )

    @command(3, when=lambda self, pick: self.copies_to_withdraw() or self.sometimes(3, pick, first=True))
    def withdraw(self, pick: Pick) -> Op:
        """The last thing scheduled is taken back, most often where a shared block was to be copied for it."""
        return Op("withdraw", request=pick(self.copies_to_withdraw() or self.judge.withdrawable()))

    @command(1, when=lambda self, _: not (self.scope.exhaustive and self.judge.preempted))
    def preempt(self, pick: Pick) -> Op:
        """A request gives its slots back and waits."""
        idle = self._idle()
        again = [r for r in idle if r.name in self._resumed]
        shared = [r for r in idle if self.forks.copied_on_write and self.forks.sharers(r.name)]
        return Op("preempt", request=pick([*idle, *2 * shared, *2 * again]).name)

    @command(5)
    def forward(self, pick: Pick) -> Op:
        """The step runs."""
        scheduled = self.judge.scheduled
        drafts = max(len(self.judge.live[name].drafts) for name in scheduled)
        abort = pick(([], [], [], [], [], scheduled[-1:], scheduled[:1])) if not self.scope.exhaustive else []
        return Op(
            "forward",
            accept=pick((0, *range(drafts + 1))) if drafts else None,
            abort=list(abort),
            reverse=pick((None, True)) if len(scheduled) > 1 else None,
        )

    @command(2)
    def finish(self, pick: Pick) -> Op:
        """A request ends."""
        names = [r.name for r in self.judge.live.values() if r.remaining <= 1]
        related = [name for name in names if self.forks.siblings(name, self.forks.withdrawn)]
        return Op("finish", request=pick([*names, *3 * related]))

    @command(1)
    def abort(self, pick: Pick) -> Op:
        """A request is aborted in whatever phase it is."""
        return Op("abort", request=pick(self.judge.holding() if self.scope.exhaustive else list(self.judge.live)))

    @command(3, when=lambda self, _: self.has_room and self.scope.mode is not Mode.MANY)
    def fork(self, pick: Pick) -> Op:
        """A request is forked."""
        live = list(self.judge.live)
        inside = [name for name in live if self.judge.live[name].computed % self._size]
        parents = live if self.scope.exhaustive else [*live, *inside]
        if self.forks.scripted:
            # Either one more holder of a block that has several, or another family.
            again = one_in(2, pick, first=True)
            parents = [name for name in inside if bool(self.forks.sharers(name)) == again] or parents
        parent = pick(parents)
        return Op("fork", request=parent, child=self._new_name(pick, [parent]))

    @command(1)
    def evict_all(self, pick: Pick) -> Op:
        """Everything cached that nobody holds is evicted."""
        require(self.scope.mode is not Mode.MANY and self.sometimes(2, pick))
        return Op("evict_all")

    @command(1)
    def reset(self, pick: Pick) -> Op:
        """Everything is forgotten."""
        require(self.scope.mode not in (Mode.MANY, Mode.LONG) and self.sometimes(4, pick))
        return Op("reset")

    complete, fail, tear = LoadingCommands.complete, LoadingCommands.fail, LoadingCommands.tear
    poll, ready = LoadingCommands.poll, LoadingCommands.ready
    abort_loading, preempt_loading = LoadingCommands.abort_loading, LoadingCommands.preempt_loading
    abort_fetching, lose = LoadingCommands.abort_fetching, LoadingCommands.lose

    @property
    def has_room(self) -> bool:
        """True if one more request may be live."""
        return len(self.judge.live) + len(self.judge.loading) + len(self.judge.fetching) < self.scope.live

    @property
    def can_schedule(self) -> bool:
        """True if running requests may be scheduled: before a step's admissions, and never with Mode.MANY."""
        return not self.judge.admitting and self.scope.mode is not Mode.MANY

    def sometimes(self, n: int, pick: Pick, *, first: bool = False) -> bool:
        """Picks whether to do something, once in `n` times; always in an exhaustive scope."""
        return self.scope.exhaustive or one_in(n, pick, first=first)

    def copies_to_withdraw(self) -> list[str]:
        """Returns the requests that wait for a copy on write and can be withdrawn, while others stay scheduled."""
        names = self.judge.withdrawable()
        return [name for name in names if name in self.forks.copied_on_write] if len(names) > 1 else []

    def execute(self, op: Op) -> Answer:
        name = op.args.get("request")
        copies_on_write = self.forks.copies_on_write(op)
        leaving = self.judge.live.get(str(name)) if op.name in ("finish", "preempt") else None
        answer = super().execute(op)
        if op.name == "admit":
            self.prompts.remember(op.args["tokens"], op.args["extra_key"])
        if leaving is not None:
            self.prompts.remember(leaving.tokens, leaving.extra_key)
        if op.name == "resume" and not answer.refused:
            self._resumed.add(str(name))
        self.forks.note(op, answer, copies_on_write)
        return answer

    def fingerprint(self) -> Any:
        """Requests by age and not by name, memory by history, idle blocks in the order in which they became so."""
        judge = self.judge
        requests = tuple(
            (
                tuple(r.tokens),
                r.extra_key,
                r.computed,
                r.pending,
                r.admitted,
                judge.table_of(name),
            )
            for name, r in judge.live.items()
        )
        scheduled = tuple(list(judge.live).index(name) for name in judge.scheduled)
        preempted = tuple((tuple(r.tokens), r.extra_key) for r in judge.preempted.values())
        step = (judge.admitting, len(judge.withdrawable()))
        state = requests, scheduled, preempted, step, judge.memory.contents(), tuple(judge.occupancy.idle)
        if judge.transfers is None:
            return state
        return *state, *self.loading_state(judge.table_of), as_state(judge.transfers.state)

    def sketch(self) -> Any:
        judge = self.judge
        requests = tuple((tuple(r.tokens), r.extra_key, r.computed, r.pending) for r in judge.live.values())
        preempted = tuple((tuple(r.tokens), r.extra_key) for r in judge.preempted.values())
        contents = len(self.prompts.history) if self.scope.mode is Mode.MANY else judge.memory.sketch()
        state = requests, preempted, judge.admitting, contents, tuple(judge.occupancy.idle)
        if judge.transfers is None:
            return state
        return *state, *self.loading_state(), len(judge.transfers.unended)

    def spare(self, every: int) -> bool:
        return self.judge.transfers is None and self.judge.spare(every)

    def catch_up(self) -> None:
        self.judge.catch_up()

    def picture(self) -> Picture:
        return picture_of_groups(self.judge) if isinstance(self.judge, GroupedJudge) else picture(self.judge)

    def unreachable(self) -> set[str]:
        return unreachable(self.judge) | (self.judge.unreachable() if isinstance(self.judge, GroupedJudge) else set())

    def not_checked(self) -> dict[str, str]:
        # Nothing is said of groups to a target without, nor of transfers.
        known = {law.id for law in self.laws if self.judge.grouped or not GROUP_TRAITS & set(law.needs)}
        if self.judge.transfers is None:
            known -= {law.id for law in self.laws if "tiers" in law.needs}
        if not self.judge.traits.moves:
            known -= {law.id for law in self.laws if "moves" in law.needs}
        return {law: why for law, why in self.judge.lacking().items() if law in known}

    @classmethod
    def laws_in_play(cls, evaluated: Mapping[str, int]) -> tuple[Law[Any], ...]:
        of_groups = [law for law in cls.laws if GROUP_TRAITS & set(law.needs)]
        groups = any(evaluated.get(law.id) for law in of_groups)
        transfers = any(evaluated.get(law.id) for law in cls.laws if "tiers" in law.needs)
        laws = (law for law in cls.laws if transfers or "tiers" not in law.needs)
        # A manager that loads in the step of its admission never makes anybody wait.
        laws = (law for law in laws if law.id not in OF_WAITING or evaluated.get(law.id))
        laws = (law for law in laws if "moves" not in law.needs or evaluated.get(law.id))
        return tuple(law for law in laws if groups or law not in of_groups)

    @classmethod
    def simpler_scopes(cls, scope: KVScope) -> Iterable[Scope]:
        if scope.ask != "avail":
            yield replace(scope, ask="avail")
        yield from super().simpler_scopes(scope)

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        plain: dict[str, Any] = {"extra_key": None, "accept": None, "reverse": None, "abort": [], "drafts": []}
        for name, value in plain.items():
            if op.args.get(name, value) not in (value, []):
                yield op.but(**{name: value})
        for simpler in simpler_args(op):
            if op.name != "admit" or not simpler.args["tokens"]:
                yield simpler
                continue
            whole = op.args["n"] == len(op.args["tokens"])
            length = len(simpler.args["tokens"])
            if whole and simpler.args["n"] == op.args["n"]:
                yield simpler.but(n=length)
            yield simpler.but(n=min(simpler.args["n"], length))

    @classmethod
    def smaller_at_once(cls, scope: KVScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from super().smaller_at_once(scope, ops)
        yield from less_room(scope, ops)

    @classmethod
    def shortcuts(cls, ops: Sequence[Op], answers: Sequence[str]) -> Iterable[Sequence[Op]]:
        return shortcuts(ops, answers)

    @classmethod
    def merged(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        return without_forks(ops)

    def _new_name(self, pick: Pick, others: Iterable[str]) -> str:
        """The next number, or now and then the name of another request with a digit more: r1 and r10."""
        longer = [f"{name}0" for name in others if len(name) < 4 and name != "r0"]
        longer = [name for name in longer if name not in self.judge.used_names]
        if longer and not self.scope.exhaustive and one_in(5, pick):
            return pick(longer)
        return f"r{self._named}"

    def _idle(self) -> list[Request]:
        require(self.can_schedule)
        return [r for r in self.judge.live.values() if not r.pending]

    def _chunk_of(self, pick: Pick, tokens: int) -> int:
        traits = self.judge.traits
        if not traits.chunk or self.scope.mode in (Mode.MANY, Mode.FORKS):
            return tokens
        align = traits.chunk_align
        if self.scope.exhaustive:
            every: list[int] = sorted({tokens, *range(align, tokens, align)}, reverse=True)
            return pick(every)
        sizes = {tokens, *(a - a % align for a in (1, self._size - 1, self._size, self._size + 1, 2 * self._size))}
        return pick([tokens, *sorted(n for n in sizes if 0 < n <= tokens)])


def judge_of(adapter: Any, memory: Any, ask: str, checks: Checks) -> ManagerJudge:
    """The judge of a target: of one table a request, or of groups. Raises Divergence if its traits cannot be read."""
    if not getattr(adapter, "groups", ()) or one_full(read_traits(adapter, Traits).groups):
        return ManagerJudge(adapter, memory, ask, checks)
    return GroupedJudge(adapter, ask, checks)
