"""`diff`: one random trace on two engines, up to the first result in which they should agree and do not.

Both are judged as usual. Beside that, an admission or a reservation is granted by both or by neither, and a hit is
equally long, counted in blocks that are whole for both. By default the pool is so large that neither has to evict, so
that policies of eviction do not show; what an engine keeps of a finished or aborted request does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click

from kvlockstep.commands.options import example, json_option, options, print_json, seed_option_for, target_option
from kvlockstep.core.errors import UsageError, known_names
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.drivers.run import Run
from kvlockstep.models.core.model import Divergence, Factory, Model, Scope
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.requests.adapter import declares_tiers
from kvlockstep.models.requests.answers import Answer
from kvlockstep.properties.law import Law
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.runs.shrinking import shrink_model
from kvlockstep.runs.supervising import supervised
from kvlockstep.show.console import progress_bar, stdout
from kvlockstep.targets import Target, resolve

ROOMY = 2_048
TRAITS = CONTRACTS["kv_manager"].traits
DIFFERENCE = Law[[Any]](
    "difference", "kv_manager", "Both engines admit the same requests with the same hits.", lambda _: None
)


def common_traits(a: Traits, b: Traits) -> Traits:
    """Traits that both engines have. Prompts come in chunks only if both count in the same blocks."""
    common = {t.name: t.common(getattr(a, t.name), getattr(b, t.name)) for t in TRAITS.values() if t.common}
    return replace(a, **{**common, "chunk": common["chunk"] and a.block_size == b.block_size})


def pair_model(names: tuple[str, str], other: Factory, without: Collection[str], roomy: bool) -> type[KVManagerModel]:
    """Model of a kv_manager with a second engine beside it. It leaves out the commands in `without`."""

    def _as_roomy(smaller: Iterable[tuple[Scope, Sequence[Op]]]) -> list[tuple[Scope, Sequence[Op]]]:
        return [(s, o) for s, o in smaller if not roomy or getattr(s, "blocks", 0) == ROOMY]

    class Pair(KVManagerModel):
        laws = (*KVManagerModel.laws, DIFFERENCE)
        scopes = tuple(
            replace(s, blocks=ROOMY) if roomy and isinstance(s, KVScope) else s for s in KVManagerModel.scopes
        )

        def __init__(self, scope: KVScope, factory: Factory) -> None:
            super().__init__(scope, factory)
            self.beside = KVManagerModel(scope, other)
            mine, theirs = self.judge.traits, self.beside.judge.traits
            shared = common_traits(mine, theirs)
            self.judge.traits = replace(shared, **_own(mine))
            self.beside.judge.traits = replace(shared, **_own(theirs))
            self.grain = math.lcm(mine.block_size, theirs.block_size)
            self.alone = mine.early_publish != theirs.early_publish

        @classmethod
        def smaller(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
            return _as_roomy(super().smaller(scope, ops))

        @classmethod
        def smaller_at_once(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
            return _as_roomy(super().smaller_at_once(scope, ops))

        def step(self, op: Op) -> Answer:
            # Where only one engine publishes before it computes, requests of one step see different caches.
            if op.name in without or (self.alone and self.judge.admitting and op.name in ("admit", "resume")):
                raise NotEnabled
            answer = _labelled(names[0], super().step, op)
            theirs = _labelled(names[1], self.beside.step, op)
            self.goals_met["eviction"] += self.beside.goals_met["eviction"]
            if _comparable(answer, self.grain) != _comparable(theirs, self.grain):
                details = (f"{names[0]}: {answer}", f"{names[1]}: {theirs}")
                raise Divergence(DIFFERENCE.id, f"{names[0]} and {names[1]} differ in the result of {op.name}", details)
            return answer

    return Pair


def _own(traits: Traits) -> dict[str, Any]:
    """Traits of its own engine that a judge must know and cannot share with the other."""
    return {trait.name: getattr(traits, trait.name) for trait in TRAITS.values() if trait.common is None}


def _labelled(name: str, step: Callable[[Op], Answer], op: Op) -> Answer:
    try:
        return step(op)
    except Divergence as divergence:
        raise Divergence(divergence.law, f"{name}: {divergence.message}", divergence.details) from None


def _comparable(answer: Answer, grain: int) -> Answer:
    """An answer without the parts in which two right engines may differ: copies, and hits of part of a block."""
    cached = None if answer.cached is None else answer.cached // grain * grain
    return Answer(answer.refused, cached)


class Compared(NamedTuple):
    """The shortest trace found on which two targets differ, if any, and whether one of them has `evicted`."""

    difference: Trace | None
    evicted: bool


def diff(a: Target, b: Target, *, steps: int, seed: int, without: Collection[str] = (), roomy: bool = True) -> Compared:
    """Plays `steps` steps on both, or fewer up to a difference, in pools that are large if `roomy`."""
    budget = profile_of("quick")
    pair = pair_model((a.name, b.name), b.factory, without, roomy)

    def work(model_type: type[Model[Any]], watchdog: Watchdog) -> Outcome:
        return RandomWalk().run(Run(model_type, a.factory, replace(budget, random_steps=steps), watchdog, seed))

    outcome = supervised("random", pair, work, budget.step_seconds)
    evicted = outcome.reach["eviction"] > 0
    if outcome.failure is None:
        return Compared(None, evicted)
    shortest = shrink_model(pair, a.factory, outcome.failure, budget)
    return Compared(shortest.but(target=f"{a.name} and {b.name}"), evicted)


@click.command(
    "diff",
    epilog=example("kvlockstep diff --target blocks --target radix"),
)
@options(target_option, seed_option_for("the random trace"), json_option)
@click.option(
    "--steps", type=click.IntRange(min=1), default=20_000, show_default=True, metavar="N", help="Steps to run."
)
@click.option(
    "--without", multiple=True, metavar="OPERATION", help="Leave out an operation, such as abort or fork. Repeatable."
)
@click.option("--pressure", is_flag=True, help="Use small pools, where eviction policies differ too.")
def diff_command(
    targets: Sequence[str], seed: int | None, as_json: bool, steps: int, without: Sequence[str], pressure: bool
) -> None:
    """Run the same random trace on two kv_managers until an admission or a hit differs, and shrink it."""
    if len(targets) != 2:
        raise UsageError(f"diff compares two targets: give --target twice, not {len(targets)} times")
    operations = [command.name for command in KVManagerModel.commands]
    if unknown := [name for name in without if name not in operations]:
        raise UsageError(f"--without {unknown[0]!r}: no operation of kv_manager{known_names(unknown[0], operations)}")
    a, b = (resolve("kv_manager", name) for name in targets)
    for target in (a, b):
        if declares_tiers(target.factory, "kv_manager"):
            raise UsageError(f"{target.name} has tiers: diff compares managers whose admissions wait for no load")
    with progress_bar() as bar:
        bar.add_task(f"{a.name} and {b.name}")
        found, evicted = diff(a, b, steps=steps, seed=seed or 0, without=without, roomy=not pressure)
    if as_json:
        answer = {"law": found.law, "message": found.message, "details": found.details} if found else None
        print_json({"targets": list(targets), "agree": found is None, "evicted": evicted, "difference": answer})
    elif found is None:
        hint = "" if pressure else "; --pressure compares eviction"
        unseen = "" if evicted else f" (nothing was evicted{hint})"
        stdout().print(f"AGREE: {a.name} and {b.name} in {steps:,} steps{unseen}", markup=False)
    else:
        stdout().print(failure_page(found), markup=False)
    sys.exit(1 if found else 0)
