"""What a scheduler can do to a kv_manager: prompts that share prefixes, chunks, drafts, forks, preemption, aborts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.kv_adapter import as_state, make_adapter
from kvlockstep.models.kv_cells import SlotMemory
from kvlockstep.models.kv_judge import ASK_ORDERS, KVJudge
from kvlockstep.models.kv_request import Request
from kvlockstep.models.kv_shrinking import smaller_pools, thinned_blocks, tidied
from kvlockstep.models.model import Factory, Goal, Model, Scope, simpler_args
from kvlockstep.models.op import NotEnabled, Op, Pick, command
from kvlockstep.properties import kv_manager as laws
from kvlockstep.reference.contracts import KV_OPTIONAL

PROMPT_KINDS = (
    "fresh", "repeat", "repeat", "longer", "longer", "shorter", "branch", "edited", "edited", "crossed", "joined"
)  # fmt: skip
HISTORY = 6
# Longer prompts repeat their beginning.
DRAWN = 96

# Token ids that are one when they are cut to so many bits, cast to a float, taken modulo the size of a vocabulary,
# clamped, added up with a multiplier, or joined as text.
CUT = (1, 257, 65537, 2**31 - 1, 0, 2), (7, 7 + 2**20, 7 + 2**24, 7 + 2**30)
CAST = (2**24, 2**24 + 1, 2048, 2049), (256, 257)
MODULO = (3, 1003, 32003), (3, 50260, 128259, 151939), (3, 1000, 1012, 1000006, 1000000010)
CLAMPED = (2**31 - 1, 2**31 - 2), (32768, 32769, 40000)
SUMMED = (1, 2, 33)
ALIKE = (1, 11, 0)
# The keys 1 and 65537 are one in 8 and in 16 bits; -1 and 0 are what others write for no key; 1 and 2 are also tokens;
# -1 and 1 differ by their sign, and Python hashes -1 and -2 to one number.
EXTRA_KEYS: tuple[tuple[int | None, ...], ...] = (
    (None, 0, 7),
    (None,),
    (None, 1, 2),
    (None, -1, 0),
    (None, 1, 65537),
    (-1, 1, -2),
    (None, 0, 1, 2, 3, 4, 5),
)


@dataclass(frozen=True)
class KVScope(Scope):
    """`live` requests at most at a time, over a vocabulary `tokens`, under `keys`. `ask`: see KVJudge.

    `max_tokens` bounds a prompt; with `exhaustive` every prompt up to it is proposed, otherwise a rich choice of
    repeated, extended, shortened and branching ones. With `many` the prompts are long, distinct and come back, and
    little else happens: thousands of cached blocks, among which the keys of two are one if they are short and trusted.
    `long` episodes, without a reset, use up what leaks in small parts and let counters run over.
    """

    blocks: int
    block_size: int
    live: int
    max_tokens: int
    tokens: tuple[int, ...] = (1, 2)
    keys: tuple[int | None, ...] = (None,)
    ask: str = "avail"
    exhaustive: bool = False
    many: bool = False
    long: bool = False

    def shown(self) -> dict[str, Any]:
        return {"blocks": self.blocks, "block_size": self.block_size, "ask": self.ask}

    @property
    def stretch(self) -> int:
        return 5 if self.long else 1


def _scopes() -> Iterable[KVScope]:
    large = itertools.cycle((*CUT, *CAST, *MODULO, *CLAMPED, SUMMED))
    vocabularies = (next(large) if i % 2 else ((1, 2), (1, 2), ALIKE)[i // 2 % 3] for i in itertools.count())
    keys = itertools.cycle(EXTRA_KEYS)
    asks = itertools.cycle(ASK_ORDERS)
    sizes = [(3, 1), (3, 2), (4, 2), (6, 2), (4, 4), (6, 4), (8, 1), (12, 2), (5, 16), (24, 4), (10, 1), (16, 2)]
    for _ in range(2):
        for i, (blocks, size) in enumerate(sizes):
            for live in (2, 4) if i % 2 else (2, 3):
                longest = blocks * size + size
                yield KVScope(blocks, size, live, longest, next(vocabularies), next(keys), next(asks))
        # The second time round nothing goes together with what it went with before.
        next(vocabularies), next(asks)
    for ask in ASK_ORDERS:
        yield KVScope(96, 1, 4, 90, (1, 2, 3), (None,), ask)
        yield KVScope(80, 2, 3, 70, (1, 2), (None, 7), ask)
    for ask in ("avail", "late"):
        yield KVScope(12, 2, 6, 8, (1, 2), (None,), ask)
        yield KVScope(8, 4, 5, 12, (1, 2), (None,), ask)
    yield KVScope(6, 8, 3, 40, (1, 2), (None, 1), "slots")
    yield KVScope(4, 32, 3, 100, (1, 2), (None,), "avail")
    yield KVScope(20, 16, 2, 300, (1, 2, 3), (None,), "late")
    yield KVScope(40, 2, 20, 3, (1, 2, 3), (None,), "avail")
    yield KVScope(24, 2, 9, 24, long=True)
    yield KVScope(2048, 1, 4, 64, tuple(range(1, 17)), (None,), "late", many=True)


class KVManagerModel(Model[KVScope]):
    contract = "kv_manager"
    laws = laws.LAWS
    scope_type = KVScope
    scopes = tuple(_scopes())
    small_scopes = (
        KVScope(2, 1, 1, 2, exhaustive=True),
        KVScope(2, 1, 2, 2, (1, 2), (None, 1), exhaustive=True),
        KVScope(3, 2, 2, 3, exhaustive=True),
        KVScope(3, 2, 2, 5, exhaustive=True),
    )
    goals = (
        Goal("hit", "a request starts with cached tokens", "prefix_cache"),
        Goal("full_prompt_hit", "everything but the last block of a whole-block prompt is cached", "prefix_cache"),
        Goal("eviction", "a step takes more blocks than were free", "prefix_cache"),
        Goal("physical_reuse", "a slot is written by a second request"),
        Goal("twins", "equal prompts are admitted in one step, before either is cached"),
        Goal("admit_into_step", "a request is admitted into a step that already has work"),
        Goal("refused_admission", "an admission is refused"),
        Goal("refused_reserve", "a reservation is refused"),
        Goal("chunk", "a prompt is computed in chunks", "chunk"),
        Goal("abort_in_prefill", "a request is aborted with part of its prompt computed", "chunk"),
        Goal("launched_abort", "a request is aborted after its forward was launched"),
        Goal("preempt", "a request is preempted"),
        Goal("resume", "a preempted request comes back"),
        Goal("reverse_commits", "a step commits in another order than it scheduled"),
        Goal("drafts", "drafts are reserved behind a decode", "drafts"),
        Goal("rejected_drafts", "some drafts are rejected", "drafts"),
        Goal("withdraw", "what was scheduled is withdrawn", "can_withdraw"),
        Goal("fork", "a request is forked", "can_fork"),
        Goal("fork_in_block", "a request is forked in the middle of a block", "can_fork"),
        Goal("copies", "slots are copied", "copies"),
        Goal("reset_live", "a reset ends live requests", "can_reset"),
        Goal("evict_all", "everything cached is evicted", "can_evict_all"),
        Goal("extra_key", "a request has an extra key", "extra_key"),
        Goal("announced_hit", "a request hits what events have announced", "event_listener"),
        Goal("announced_removal", "an event says that a block is gone", "event_listener"),
        Goal("length_0_mod_block", "a prompt fills its last block"),
        Goal("length_1_mod_block", "a prompt has one token in its last block"),
        Goal("length_-1_mod_block", "a prompt lacks one token of filling its last block"),
        Goal("long_request", "a prompt has nine blocks or more"),
        Goal("decode_at_block_start", "a decode writes the first slot of a block"),
    )

    def __init__(self, scope: KVScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        self.judge = KVJudge(make_adapter(factory, scope.blocks, scope.block_size), SlotMemory, scope.ask)
        self.reach = self.judge.reach
        self.history: list[tuple[tuple[int, ...], int | None]] = []
        self._named = 0
        self._forked_at: dict[str, tuple[str, int]] = {}
        self._torn: list[str] = []
        self._returned: str | None = None
        self._resumed: set[str] = set()
        traits = self.judge.traits
        self._size = traits.block_size
        self._keys = scope.keys if traits.extra_key else (None,)
        self._longest = min(scope.max_tokens, traits.max_length or scope.max_tokens)

    @command(6)
    def admit(self, pick: Pick) -> Op:
        """A new request asks for admission."""
        self._require(len(self.judge.live) < self.scope.live)
        self._require(not self._sharing() or pick((True, False)))
        tokens, key = self._prompt(pick)
        name = self._new_name(pick, self.judge.live)
        return Op("admit", request=name, tokens=tokens, extra_key=key, n=self._chunk_of(pick, len(tokens)))

    @command(2)
    def resume(self, pick: Pick) -> Op:
        """A preempted request comes back."""
        self._require(len(self.judge.live) < self.scope.live)
        waiting = list(self.judge.preempted)
        name = pick(waiting if self.scope.exhaustive else [*waiting, *waiting[-1:]])
        return Op("resume", request=name, n=self._chunk_of(pick, len(self.judge.preempted[name].tokens)))

    @command(2)
    def chunk(self, pick: Pick) -> Op:
        """The next part of a prompt is scheduled."""
        self._require(self.judge.traits.chunk)
        request = pick([r for r in self._idle() if r.remaining > 0 and r.computed > 0])
        return Op("chunk", request=request.name, n=self._chunk_of(pick, request.remaining))

    @command(6)
    def decode(self, pick: Pick) -> Op:
        """A token is sampled and scheduled, perhaps with drafts behind it."""
        traits = self.judge.traits
        longest = traits.max_length or 10**9
        idle = [r for r in self._idle() if r.remaining <= 1 and r.computed < longest]
        urgent = [r for r in idle if r.name == self._returned or self._sharers(r.name)]
        request = pick([*idle, *2 * urgent])
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

    @command(4)
    def withdraw(self, pick: Pick) -> Op:
        """The last thing scheduled is taken back, most often where a shared block was to be copied for it."""
        names = self.judge.withdrawable()
        torn = [name for name in names if name in self._torn] if len(names) > 1 else []
        self._require(bool(torn) or self.scope.exhaustive or pick((True, False, False)))
        return Op("withdraw", request=pick(torn or names))

    @command(1)
    def preempt(self, pick: Pick) -> Op:
        """A request gives its slots back and waits."""
        self._require(not self.scope.exhaustive or not self.judge.preempted)
        idle = self._idle()
        again = [r for r in idle if r.name in self._resumed]
        shared = [r for r in idle if self._tangled() and self._sharers(r.name)]
        return Op("preempt", request=pick([*idle, *2 * shared, *2 * again]).name)

    @command(5)
    def forward(self, pick: Pick) -> Op:
        """The step runs."""
        scheduled = self.judge.scheduled
        self._require(bool(scheduled) and (not self._tangled() or pick((True, False))))
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
        self._require(not self.judge.scheduled)
        names = [r.name for r in self.judge.live.values() if r.remaining <= 1]
        return Op("finish", request=pick([*names, *(3 * [name for name in names if self._kin(name, self._returned)])]))

    @command(1)
    def abort(self, pick: Pick) -> Op:
        """A request is aborted in whatever phase it is."""
        self._require(not self.judge.scheduled)
        return Op("abort", request=pick(list(self.judge.live)))

    @command(3)
    def fork(self, pick: Pick) -> Op:
        """A request is forked."""
        self._require(
            self.judge.traits.can_fork and not self.judge.scheduled and len(self.judge.live) < self.scope.live
        )
        self._require(not self.scope.many)
        live = list(self.judge.live)
        inside = [name for name in live if self.judge.live[name].computed % self._size]
        again = [name for name in inside if self._sharers(name)]
        parent = pick(live if self.scope.exhaustive else [*live, *inside, *again])
        return Op("fork", request=parent, child=self._new_name(pick, [parent]))

    @command(1)
    def evict_all(self, pick: Pick) -> Op:
        """The cache is emptied of what nobody holds."""
        self._require(self.judge.traits.can_evict_all and not self.judge.scheduled)
        self._require(not self.scope.many and (self.scope.exhaustive or pick((False, True))))
        return Op("evict_all")

    @command(1)
    def reset(self, pick: Pick) -> Op:
        """Everything is forgotten."""
        self._require(self.judge.traits.can_reset and not self.judge.scheduled)
        self._require(not self.scope.many and not self.scope.long)
        self._require(self.scope.exhaustive or pick((False, False, False, True)))
        return Op("reset")

    def step(self, op: Op) -> str:
        return self._execute(op)

    def redo(self, op: Op) -> None:
        self._execute(op)

    def _execute(self, op: Op) -> str:
        args = dict(op.args)
        name = args.pop("request", None)
        method = getattr(self.judge, op.name, None) if op.name in _OPERATIONS else None
        if method is None:
            raise NotEnabled
        torn = op.name == "decode" and bool(self._sharers(name))
        leaving = self.judge.live.get(name) if op.name in ("finish", "preempt") else None
        answer: str = method(name, **args) if name is not None else method(**args)
        if op.name == "admit":
            self._remember(args["tokens"], args["extra_key"])
        if leaving is not None:
            self._remember(leaving.tokens, leaving.extra_key)
        if op.name == "fork" and args["child"] in self.judge.live:
            self._note_fork(name, args["child"])
        if op.name == "resume":
            self._resumed.add(name)
        if torn and name in self.judge.scheduled:
            self._torn.append(name)
        if op.name == "withdraw" and name in self._torn:
            self._torn.remove(name)
            self._returned = name
        if not self.judge.scheduled:
            self._torn.clear()
        for created in (name, args.get("child")):
            if created and created[1:].isdecimal():
                self._named = max(self._named, int(created[1:]) + 1)
        return answer

    def fingerprint(self) -> Any:
        """Requests by age and not by name, memory by history, idle blocks in the order in which they became so."""
        judge = self.judge
        requests = tuple(
            (tuple(r.tokens), r.extra_key, r.computed, r.pending, r.admitted, tuple(as_state(judge.places.table, name)))
            for name, r in judge.live.items()
        )
        scheduled = tuple(list(judge.live).index(name) for name in judge.scheduled)
        preempted = tuple((tuple(r.tokens), r.extra_key) for r in judge.preempted.values())
        step = (judge.admitting, len(judge.withdrawable()))
        return requests, scheduled, preempted, step, judge.memory.contents(), tuple(judge.idle_blocks)

    def sketch(self) -> Any:
        judge = self.judge
        requests = tuple((tuple(r.tokens), r.extra_key, r.computed, r.pending) for r in judge.live.values())
        preempted = tuple((tuple(r.tokens), r.extra_key) for r in judge.preempted.values())
        contents = len(self.history) if self.scope.many else judge.memory.contents()
        return requests, preempted, judge.admitting, contents, tuple(judge.idle_blocks)

    def not_checked(self) -> dict[str, str]:
        judge, traits = self.judge, self.judge.traits
        reasons = {
            "free_slots": None if judge.places.shows_free else "free_slots answers None",
            **{t: None if getattr(traits, t) else f"the target declares no {t}" for t in KV_OPTIONAL.values()},
        }
        return {law.id: reason for law in self.laws for need in law.needs if (reason := reasons.get(need))}

    def unreachable(self) -> set[str]:
        traits = self.judge.traits
        has = {
            **{f: getattr(traits, f) for f in ("chunk", "can_withdraw", "can_fork", "can_reset", "can_evict_all")},
            "extra_key": traits.extra_key,
            "event_listener": self.judge.listener is not None,
            "prefix_cache": traits.prefix_cache,
            "drafts": traits.tokens_per_decode is None or traits.tokens_per_decode > 1,
            "copies": traits.copies_at_admit
            or (traits.copies_at_reserve and traits.can_fork and traits.block_size > 1),
        }
        unreachable = {g.id for g in self.goals if g.when and not has[g.when]}
        if traits.max_length is not None and traits.max_length < 9 * traits.block_size:
            unreachable.add("long_request")
        if traits.max_length is not None and traits.max_length <= traits.block_size:
            unreachable |= {"full_prompt_hit", "refused_reserve", "decode_at_block_start"}
        if traits.max_length is not None and not self.judge.saw_growth:  # every request has its row from the start
            unreachable.add("refused_reserve")
        if traits.block_size == 1:
            unreachable.add("fork_in_block")
        if not self.judge.saw_evictable:
            unreachable.add("eviction")
        return unreachable

    def describe(self) -> dict[str, Any]:
        traits = self.judge.traits
        names = ("engine", "version")
        return {
            **{n: v for n in names if isinstance(v := getattr(self.judge.adapter, n, None), str)},
            "traits": traits,
        }

    @classmethod
    def simpler_scopes(cls, scope: KVScope) -> Iterable[KVScope]:
        if scope.ask != "avail":
            yield replace(scope, ask="avail")
        yield from smaller_pools(scope)

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
    def smaller(cls, scope: KVScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from super().smaller(scope, ops)
        yield from thinned_blocks(scope, ops)

    @classmethod
    def tidy(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        return tidied(ops)

    def _new_name(self, pick: Pick, others: Iterable[str]) -> str:
        """The next number, or now and then the name of another request with a digit more: r1 and r10."""
        longer = [f"{name}0" for name in others if len(name) < 4 and name != "r0"]
        longer = [name for name in longer if name not in self.judge.used_names]
        if longer and not self.scope.exhaustive and pick((False, False, False, False, True)):
            return pick(longer)
        return f"r{self._named}"

    def _note_fork(self, parent: str, child: str) -> None:
        """Which requests a fork in the middle of a block has left with one last block."""
        computed = self.judge.live[parent].computed
        if computed % self._size:
            if self._forked_at.get(parent, ("", 0))[1] != computed:
                self._forked_at[parent] = parent, computed
            self._forked_at[child] = self._forked_at[parent]

    def _kin(self, name: str, other: str | None) -> bool:
        """Whether two requests parted at one fork."""
        return other is not None and name != other and self._forked_at.get(name, 0) == self._forked_at.get(other, 1)

    def _sharers(self, name: str) -> list[str]:
        """The other requests that have written nothing since they began to share the last block of this one."""
        live = self.judge.live
        if name not in self._forked_at or name not in live or live[name].computed != self._forked_at[name][1]:
            return []
        return [other for other in live if self._kin(name, other) and live[other].computed == live[name].computed]

    def _sharing(self) -> bool:
        """Whether a last block has two holders that go on."""
        if not self._forked_at or self.scope.exhaustive:
            return False
        return any(self._sharers(name) for name in self.judge.live)

    def _tangled(self) -> bool:
        """Whether a step may still take back what it does to a last block that is shared."""
        return bool(self._torn) and not self.judge.admitting and not self.scope.exhaustive

    def _require(self, enabled: bool) -> None:
        if not enabled:
            raise NotEnabled

    def _idle(self) -> list[Request]:
        if self.judge.admitting or self.scope.many:
            raise NotEnabled
        return [r for r in self.judge.live.values() if not r.pending]

    def _remember(self, tokens: Sequence[int], extra_key: int | None) -> None:
        known = (tuple(tokens), extra_key)
        if known not in self.history:
            self.history.append(known)
            if not self.scope.many:
                del self.history[:-HISTORY]

    def _chunk_of(self, pick: Pick, tokens: int) -> int:
        traits = self.judge.traits
        if not traits.chunk or self.scope.many:
            return tokens
        align = traits.chunk_align
        if self.scope.exhaustive:
            every: list[int] = sorted({tokens, *range(align, tokens, align)}, reverse=True)
            return pick(every)
        sizes = {tokens, *(a - a % align for a in (1, self._size - 1, self._size, self._size + 1, 2 * self._size))}
        return pick([tokens, *sorted(n for n in sizes if 0 < n <= tokens)])

    def _prompt(self, pick: Pick) -> tuple[list[int], int | None]:
        """The tokens of a new request and its extra key, mostly that of the request it is like."""
        scope = self.scope
        if scope.exhaustive:
            return list(pick(_all_prompts(scope.tokens, self._longest))), pick(self._keys)
        if scope.many:
            return self._one_of_many(pick)
        twins = [self.judge.live[name] for name in self.judge.scheduled[-1:] if self.judge.live[name].admitted]
        again = pick((True, False, False, False, False)) if twins else False
        if again:
            return list(twins[0].tokens), twins[0].extra_key
        kind = pick(PROMPT_KINDS) if self.history else "fresh"
        if kind == "fresh":
            return self._grown([], pick), pick(self._keys)
        if kind == "joined" and self.judge.live:
            other = pick(list(self.judge.live.values()))
            known = other.tokens[: other.computed]
            return [*known, pick(scope.tokens)][: self._longest], other.extra_key
        known, key = pick((*self.history, *self.history[-2:]))
        if len(self._keys) > 1 and pick((True, False)):
            key = pick(self._keys)
        base = list(known)
        if kind in ("shorter", "branch"):
            base = base[: self._length(pick, len(base) - 1)] if len(base) > 1 else base
        if kind == "edited":
            return self._edited(base, pick), key
        if kind == "crossed":
            return self._crossed(base, pick), key
        return base[: self._longest] if kind in ("repeat", "shorter") else self._grown(base, pick), key

    def _one_of_many(self, pick: Pick) -> tuple[list[int], int | None]:
        """A prompt of random tokens, or one that was there before."""
        again = pick((True, False)) if self.history else False
        if again:
            tokens, key = pick(self.history)
            return list(tokens), key
        return [pick(self.scope.tokens) for _ in range(self._longest)], pick(self._keys)

    def _grown(self, base: list[int], pick: Pick) -> list[int]:
        room = self._longest - len(base)
        more = self._length(pick, room) if room > 0 else 0
        new = [pick(self.scope.tokens) for _ in range(min(more, DRAWN))]
        return (base + (new * (more // DRAWN + 1))[:more])[: self._longest]

    def _edited(self, base: list[int], pick: Pick) -> list[int]:
        """The sequence with one token replaced or left out, and perhaps one more, so that its last block can be hit."""
        at = pick((0, len(base) // 2, max(0, len(base) - 2), len(base) - 1))
        base[at : at + 1] = [pick(self.scope.tokens)] if len(base) == 1 or pick((True, True, False)) else []
        return (base + [pick(self.scope.tokens)] * pick((0, 1)))[: self._longest]

    def _crossed(self, base: list[int], pick: Pick) -> list[int]:
        """The head of one sequence before the tail of another, as if requests that parted had come together again."""
        other, _ = pick(self.history)
        at = self._length(pick, min(len(base), len(other)))
        return (base[:at] + list(other[at:]) + [pick(self.scope.tokens)])[: self._longest]

    def _length(self, pick: Pick, most: int) -> int:
        """A length from 1 to `most`, near a multiple of the block."""
        blocks = most // self._size
        k = pick((0, 1, 1, 2, 2, 3, blocks, 9)) if blocks > 3 else pick(range(blocks + 1))
        return max(1, min(most, k * self._size + pick((-1, 0, 0, 1))))


def _all_prompts(tokens: tuple[int, ...], longest: int) -> list[tuple[int, ...]]:
    return [p for n in range(1, longest + 1) for p in itertools.product(tokens, repeat=n)]


_OPERATIONS = frozenset(c.name for c in KVManagerModel.commands)
