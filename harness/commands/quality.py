"""`quality`: memory use of a kv_manager on multi-turn chats, beside exact LRU and an unbounded cache.

Users take turns; each turn sends the whole conversation again with new tokens, and gets an answer. A few requests are
in flight at a time. The scheduler is the simplest: first come, first served; a decode without room preempts the
youngest. Exact LRU is `blocks`, which evicts single blocks, tail first, in the order of their last use.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click
from rich.table import Table

from kvlockstep.commands.options import example, json_option, options, print_json, seed_option_for, target_option
from kvlockstep.core.errors import UsageError
from kvlockstep.core.parent import RUNNING, doing
from kvlockstep.runs.chat import Chats
from kvlockstep.show.console import progress_bar, stdout
from kvlockstep.targets import Target, resolve
from kvlockstep.targets.trying import attempt, describe_failed_call

EXACT_LRU = "blocks"
UNBOUNDED = 16


@dataclass(frozen=True)
class ChatWorkload:
    """`blocks` blocks of `block_size` tokens are about a third of what all conversations hold in the end."""

    blocks: int = 512
    block_size: int = 16
    users: int = 24
    turns: int = 8
    system: int = 128
    asked: int = 64
    answered: int = 32
    in_flight: int = 4
    popularity: float = 0.8

    @property
    def longest(self) -> int:
        """Tokens of a whole conversation."""
        return self.system + self.turns * (self.asked + self.answered)


@dataclass
class Quality:
    """Token counts of one run. `lost` blocks are neither free nor evictable when no request is live."""

    target: str
    requests: int = 0
    prompt: int = 0
    hit: int = 0
    refused: int = 0
    needless: int = 0
    preempted: int = 0
    lost: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hit / self.prompt if self.prompt else 0.0


@dataclass
class _Turn:
    rid: str
    tokens: list[int]
    user: int
    answer: deque[int] = field(default_factory=deque)


def chat_turns(chat: ChatWorkload, seed: int) -> list[tuple[int, list[int], list[int]]]:
    """(user, prompt, answer) of every turn, in the order of arrival; more popular users come more often."""
    draw = random.Random(seed)
    chats = Chats(draw, users=chat.users, system=chat.system, vocabulary=50_000, popularity=chat.popularity)
    left = [chat.turns] * chat.users
    turns = []
    while any(left):
        user = draw.choices(range(chat.users), [w if n else 0 for w, n in zip(chats.weights, left, strict=True)])[0]
        left[user] -= 1
        turns.append((user, *chats.turn(user, chat.asked, chat.answered)))
    return turns


def measure(target: Target, chat: ChatWorkload, seed: int) -> Quality:
    """Serves the chats on a new manager of the target. Nothing is judged here; `check` does that.

    Raises UsageError if the manager cannot serve them, or raises anything.
    """
    with doing(RUNNING, target.name):
        quality, error = attempt(_serve, target, chat, seed)
    if error is not None and not isinstance(error, UsageError):
        hint = f"`kvlockstep check kv_manager --target {target.name}` makes a trace of it"
        raise UsageError(f"{target.name} {describe_failed_call(error)} while it served the chats; {hint}") from error
    if error is not None:
        raise error
    found: Quality = quality
    return found


def _serve(target: Target, chat: ChatWorkload, seed: int) -> Quality:
    manager = target.factory(chat.blocks, chat.block_size)
    if getattr(manager, "tiers", None):
        raise UsageError(f"{target.name} has tiers: quality measures managers whose admissions wait for no load")
    quality = Quality(target.name)
    longest, limit = chat.longest, getattr(manager, "max_length", None)
    if limit is not None and longest > limit:
        raise UsageError(f"{target.name} takes at most {limit} tokens in this pool, and the chats grow to {longest}")
    waiting = deque(
        _Turn(f"t{i}", prompt, user, deque(answer)) for i, (user, prompt, answer) in enumerate(chat_turns(chat, seed))
    )
    live: list[_Turn] = []
    seen: set[str] = set()
    while waiting or live:
        _decode(manager, live, waiting, quality)
        busy = {turn.user for turn in live}
        while waiting and len(live) < chat.in_flight and waiting[0].user not in busy:
            turn = waiting[0]
            if not _admit(manager, turn, live, quality, first=turn.rid not in seen):
                break
            seen.add(turn.rid)
            busy.add(turn.user)
            live.append(waiting.popleft())
    quality.lost = (manager.total - manager.avail()) // manager.block_size
    return quality


def _admit(manager: Any, turn: _Turn, live: Sequence[_Turn], quality: Quality, first: bool) -> bool:
    hit = manager.admit(turn.rid, list(turn.tokens), None, len(turn.tokens))
    if hit is None:
        size = manager.block_size
        held = {slot // size for other in live for slot in manager.slots(other.rid)}
        quality.refused += 1
        quality.needless += -(-len(turn.tokens) // size) <= manager.total // size - len(held)
        if not live:
            raise UsageError(f"{quality.target} refuses a prompt of {len(turn.tokens)} tokens with nothing else live")
        return False
    manager.copies()
    manager.launch()
    manager.commit(turn.rid, len(turn.tokens) - hit)
    quality.requests += first
    quality.prompt += len(turn.tokens) if first else 0
    quality.hit += hit if first else 0
    return True


def _decode(manager: Any, live: list[_Turn], waiting: deque[_Turn], quality: Quality) -> None:
    """One token for each live request; those that are done finish."""
    for turn in [turn for turn in live if not turn.answer]:
        manager.finish(turn.rid)
        live.remove(turn)
    for turn in list(live):
        if turn not in live:
            continue
        token = turn.answer.popleft()
        manager.append(turn.rid, token)
        turn.tokens.append(token)
        while not manager.reserve(turn.rid, 1):
            victim = live.pop()
            manager.preempt(victim.rid)
            waiting.appendleft(victim)
            quality.preempted += 1
            if victim is turn:
                break
        else:
            manager.copies()
            manager.launch()
            manager.commit(turn.rid, 1)


def compare(targets: Sequence[Target], chat: ChatWorkload, seed: int) -> list[Quality]:
    """The targets, then exact LRU with the same pool, then with a pool that never fills."""
    exact = resolve("kv_manager", EXACT_LRU)
    rows = [measure(target, chat, seed) for target in targets]
    rows.append(replace(measure(exact, chat, seed), target="exact LRU"))
    unbounded = replace(chat, blocks=chat.blocks * UNBOUNDED)
    return [*rows, replace(measure(exact, unbounded, seed), target="unbounded cache")]


@click.command(
    "quality",
    epilog=example("kvlockstep quality --target blocks --target radix"),
)
@options(target_option, seed_option_for("the chats"), json_option)
@click.option(
    "--blocks",
    type=click.IntRange(min=64),
    default=ChatWorkload.blocks,
    show_default=True,
    metavar="N",
    help="Blocks of the pool.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=ChatWorkload.block_size,
    show_default=True,
    metavar="N",
    help="Tokens per block.",
)
def quality_command(targets: Sequence[str], seed: int | None, as_json: bool, blocks: int, block_size: int) -> None:
    """Measure hit rate, needless refusals, recomputed tokens and lost blocks of kv_managers on multi-turn chats."""
    chosen = [resolve("kv_manager", name) for name in targets or ("blocks", "radix", "transformers")]
    chat = ChatWorkload(blocks=blocks, block_size=block_size)
    with progress_bar() as bar:
        bar.add_task("serving")
        rows = compare(chosen, chat, seed or 0)
    best = rows[-1].hit
    if as_json:
        shown = [{**asdict(row), "hit_rate": row.hit_rate, "recomputed": best - row.hit} for row in rows]
        print_json({"chat": asdict(chat), "rows": shown})
        return
    table = Table("kv_manager", box=None, pad_edge=False)
    for column in ("hit rate", "recomputed", "refused", "needless", "preempted", "lost blocks"):
        table.add_column(column, justify="right")
    for row in rows:
        counts = (best - row.hit, row.refused, row.needless, row.preempted, row.lost)
        table.add_row(row.target, f"{row.hit_rate:.3f}", *(f"{count:,}" for count in counts))
    console = stdout()
    console.print(table)
    console.print(
        f"{rows[0].requests:,} requests, {rows[0].prompt:,} prompt tokens; recomputed: tokens that were cached once"
    )
