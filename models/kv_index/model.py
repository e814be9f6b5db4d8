"""What can happen to a router's index: workers store, evict, clear and leave, and some of their events are lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kvlockstep.models.core.model import Factory, Model, Scope, simpler_args
from kvlockstep.models.core.op import Command, NotEnabled, Op, Pick, command, one_in, require
from kvlockstep.models.core.picture import Picture, Table, numbers
from kvlockstep.models.kv_index.goals import GOALS, unreachable
from kvlockstep.models.kv_index.judge import IndexJudge
from kvlockstep.models.kv_index.operations import OPERATIONS
from kvlockstep.models.kv_index.scope import SMALL, KVIndexScope, scopes
from kvlockstep.models.requests.adapter import named, not_checked
from kvlockstep.models.requests.answers import Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties.kv_index.heard import Message
from kvlockstep.properties.kv_index.laws import LAWS
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.reference.kv_index.index import Prefix

# Events further back are not repeated, and sequences further back not taken up again.
MOST_REPEATED = 4
MOST_REMEMBERED = 12
# Commands that need a trait.
NEEDED = {"resync": "can_resync", "reload": "can_snapshot"}


class KVIndexModel(Model[KVIndexScope]):
    contract = "kv_index"
    laws = LAWS
    goals = GOALS
    scope_type = KVIndexScope
    operations = OPERATIONS
    scopes = tuple(scopes())
    small_scopes = SMALL

    def __init__(self, scope: KVIndexScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        checks, questions = Checks(self.laws), scope.questions()
        self.judge = IndexJudge(factory, scope.block_size, scope.workers, scope.keys, questions, checks)
        self.goals_met = self.judge.goals_met
        self._sequences: list[tuple[int, ...]] = []

    def propose(self, command: Command, pick: Pick) -> Op:
        trait = NEEDED.get(command.name)
        require(trait is None or getattr(self.judge.traits, trait))
        return super().propose(command, pick)

    @command(6)
    def store(self, pick: Pick) -> Op:
        """A worker caches a sequence."""
        worker = self.judge.workers[self._some_worker(pick)]
        tokens, key = self._sequence(pick), self._key(pick)
        blocks = worker.blocks_of(tokens, key)
        require(blocks)
        # What is cached already is announced again now and then: as a copy, or since a parent was removed.
        missing = next((i for i, block in enumerate(blocks) if block not in worker.copies), len(blocks) - 1)
        legal = [i for i in range(len(blocks)) if i == 0 or blocks[i - 1] in worker.announced]
        first = pick(legal if self.scope.exhaustive else [*legal, *3 * [missing]])
        return Op("store", worker=worker.name, tokens=tokens, first=first, extra_key=key, lost=self._lost(pick))

    @command(4)
    def evict(self, pick: Pick) -> Op:
        """A worker evicts a block, and perhaps those in front of it."""
        worker = self.judge.workers[self._some_worker(pick)]
        counting = self.judge.traits.event_listener == "counting"
        cached: list[Prefix] = list(worker.copies)
        if not counting and (self.scope.exhaustive or one_in(6, pick)):
            cached = sorted(worker.announced, key=str)
        key, tokens = pick(cached)
        most = len(tokens) // self.scope.block_size
        n = pick(range(1, most + 1)) if self.scope.exhaustive or one_in(3, pick) else 1
        require(not counting or all(b in worker.copies for b in worker.blocks_of(tokens, key)[most - n :]))
        return Op("evict", worker=worker.name, tokens=list(tokens), n=n, extra_key=key, lost=self._lost(pick))

    @command(1)
    def clear(self, pick: Pick) -> Op:
        """A worker clears its cache."""
        return Op("clear", worker=self._some_worker(pick), lost=self._lost(pick))

    @command(2)
    def repeat(self, pick: Pick) -> Op:
        """One of the last events of a worker arrives again, or late."""
        require(self.scope.repeats)
        worker = self.judge.workers[self._some_worker(pick)]
        sent, most = len(worker.sent), 1 if self.scope.exhaustive else MOST_REPEATED
        number = pick(range(sent - 1, max(sent - 1 - most, -1), -1))
        # An event that was lost may arrive late without the trait, as long as none behind it has arrived.
        require(self.judge.traits.ignores_old or not self.judge.heard[worker.name].is_old(number))
        return Op("repeat", worker=worker.name, number=number)

    @command(1)
    def leave(self, pick: Pick) -> Op:
        """A worker leaves, and another of its name comes."""
        return Op("leave", worker=self._some_worker(pick))

    @command(2)
    def resync(self, pick: Pick) -> Op:
        """A worker is asked for its whole cache, most often where events of it are missing."""
        gaps = [worker for worker, heard in enumerate(self.judge.heard) if heard.gap]
        worker = self._some_worker(pick)
        return Op("resync", worker=worker if self.scope.exhaustive or not gaps else pick((*gaps, worker)))

    @command(1)
    def reload(self, pick: Pick) -> Op:
        """The router starts again from a snapshot."""
        require(self.judge.traits.can_resync)
        return Op("reload")

    @command(2, when=lambda self, _: not self.scope.exhaustive)
    def lookup(self, pick: Pick) -> Op:
        """A sequence is asked for."""
        tokens = self._sequence(pick)
        return Op("lookup", tokens=tokens + pick(([], list(self.scope.tokens[:1]))), extra_key=self._key(pick))

    def _some_worker(self, pick: Pick) -> int:
        return pick(range(self.scope.workers))

    def _lost(self, pick: Pick) -> bool | None:
        if not self.scope.losses:
            return None
        return pick((None, True)) if self.scope.exhaustive else one_in(6, pick) or None

    def _key(self, pick: Pick) -> int | None:
        keys = self.scope.keys if self.judge.traits.extra_key else (None,)
        return pick(keys)

    def _sequence(self, pick: Pick) -> list[int]:
        """A sequence of whole blocks, most often a part of an earlier one with something behind it."""
        scope, size = self.scope, self.scope.block_size
        if scope.exhaustive:
            return list(pick([t for t, key in scope.questions() if len(t) % size == 0 and key == scope.keys[0]]))
        base = list(pick(self._sequences)) if self._sequences and not one_in(4, pick) else []
        base = base[: pick(range(len(base) // size + 1)) * size]
        room = scope.length - len(base) // size
        more = pick(range(0 if base else 1, room + 1))
        # Blocks of one token only, and those that are equal to the one before, come often.
        if one_in(3, pick):
            return base + (base[-size:] or [pick(scope.tokens)] * size) * more
        return base + [pick(scope.tokens) for _ in range(more * size)]

    def step(self, op: Op) -> Answer:
        return self._execute(op)

    def redo(self, op: Op) -> None:
        self._execute(op)

    def _execute(self, op: Op) -> Answer:
        if op.name not in self.operations:
            raise NotEnabled
        answer = Answer(text=getattr(self.judge, op.name)(**op.args))
        evaluated = self.judge.checks.evaluated
        evaluated[ERROR_CONTRACT.id] += 1
        evaluated[TERMINATION.id] += 1
        tokens = tuple(op.args.get("tokens", ()))
        if tokens and tokens not in self._sequences:
            self._sequences = [*self._sequences[1 - MOST_REMEMBERED :], tokens]
        return answer

    def fingerprint(self) -> Any:
        judge = self.judge
        state = []
        for worker, heard in zip(judge.workers, judge.heard, strict=True):
            copies = tuple(sorted(worker.copies.items(), key=str))
            bounds = tuple(tuple(sorted(c.items(), key=str)) for c in (heard.sure, heard.possible))
            # Numbers grow for ever; the state has how many events the index waits for, and what the last one was.
            behind = min(len(worker.sent) - 1 - (-1 if heard.last is None else heard.last), 2)
            last = worker.sent[-1:] if self.scope.repeats else []
            arrived = heard.gap, heard.last is None, behind
            announced = tuple(sorted(worker.announced, key=str))
            state.append((copies, announced, bounds, arrived, *map(_told, last)))
        return tuple(state)

    def picture(self) -> Picture:
        rows = []
        for (tokens, key), answers in self.judge.questions.answers.items():
            for worker, heard in enumerate(self.judge.heard):
                least, most = heard.bounds(tokens, key)
                wanted = str(least) if least == most else f"{least} to {most}"
                said = answers.get(worker, 0)
                if said or most:
                    rows.append((numbers(tokens), str(key), str(worker), str(said), wanted))
        caches = [
            (str(worker.name), numbers(tokens), str(key), str(copies))
            for worker in self.judge.workers
            for (key, tokens), copies in sorted(worker.copies.items(), key=lambda item: (str(item[0][0]), item[0][1]))
        ]
        return Picture(
            "block",
            {},
            (
                Table("what the index says", ("sequence", "extra key", "worker", "blocks", "must be"), tuple(rows)),
                Table("what is cached", ("worker", "up to and with", "extra key", "copies"), tuple(caches)),
            ),
        )

    @property
    def evaluated(self) -> Any:
        return self.judge.checks.evaluated

    def forget(self) -> None:
        super().forget()
        self.judge.checks.evaluated.clear()

    def not_checked(self) -> dict[str, str]:
        return not_checked(self.laws, self.judge.traits, shows_free=True)

    def describe(self) -> dict[str, Any]:
        return {**named(self.judge.adapter), "traits": self.judge.traits}

    def unreachable(self) -> set[str]:
        return unreachable(self.judge.traits)

    @classmethod
    def simpler_scopes(cls, scope: KVIndexScope) -> Iterable[Scope]:
        if scope.block_size > 1:
            yield replace(scope, block_size=1)
        for workers in range(1, scope.workers):
            yield replace(scope, workers=workers)

    @classmethod
    def smaller(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from super().smaller(scope, ops)
        # Smaller blocks hold shorter sequences: one token of each block.
        for size in range(1, scope.block_size):
            yield replace(scope, block_size=size), [_thinned(op, scope.block_size, size) for op in ops]

    @classmethod
    def smaller_at_once(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        if scope.keys != (None,):
            # A sequence is asked for under the keys of the scope, so that both have to lose theirs.
            plain = [op.but(extra_key=None) if "extra_key" in op.args else op for op in ops]
            yield replace(scope, keys=(None,)), plain

    @classmethod
    def merged(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        for one, other in itertools.permutations(sorted({op.args["worker"] for op in ops if "worker" in op.args}), 2):
            yield [op.but(worker=other) if op.args.get("worker") == one else op for op in ops]

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        for name in ("extra_key", "lost"):
            if op.args.get(name) is not None:
                yield op.but(**{name: None})
        yield from simpler_args(op)


def _told(message: Message) -> tuple[str, tuple[Prefix, ...]]:
    return type(message.event).__name__, message.prefixes


def _thinned(op: Op, old: int, new: int) -> Op:
    """The operation with `new` tokens of each block of `old`, and as many behind the last whole block as fit."""
    if "tokens" not in op.args:
        return op
    tokens = op.args["tokens"]
    blocks = [tokens[i : i + old] for i in range(0, len(tokens), old)]
    kept = [token for block in blocks for token in (block[:new] if len(block) == old else block[: new - 1])]
    return op.but(tokens=kept)
