"""Judge of a kv_manager with groups: the operations of ManagerJudge over tables by group and pools by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_manager.groups import goals, reading, refusals
from kvlockstep.models.kv_manager.groups.answers import ManagerQuestions
from kvlockstep.models.kv_manager.groups.settling import settle
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.requests.adapter import as_state
from kvlockstep.models.requests.answers import Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.groups.answers import copies_text
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.groups.occupied import occupancy
from kvlockstep.models.requests.groups.own_memory import memory_of
from kvlockstep.models.requests.groups.progress import Progress
from kvlockstep.models.requests.groups.reading import copy
from kvlockstep.models.requests.groups.session import lacking, of_pool
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import ERROR_CONTRACT, Law
from kvlockstep.reference.kv_manager.groups.contract import Admitted


class GroupedJudge(ManagerJudge):
    """`kv` is the KV memory, `groups` asks the manager.

    `seen` are the blocks of each pool that were ever held; `progress` keeps what the goals are about.
    """

    grouped = True
    unit = "block"
    reading: Sequence[Law[[Any]]] = ()

    def __init__(self, adapter: Any, ask: str, checks: Checks | None = None) -> None:
        super().__init__(adapter, memory_of, ask, checks)

    def prepare(self) -> None:
        if self.traits.tiers:
            raise Divergence(ERROR_CONTRACT.id, "a target declares groups and tiers, which are not judged together")
        self.groups = self.questions = ManagerQuestions(self.adapter, self.traits, self.checks, self.ask)
        self.kv: GroupMemory = self.memory
        self.listening = None
        self.seen: dict[str, set[int]] = {pool: set() for pool in self.groups.pools}
        self.progress = Progress(self.groups.groups, self.goals_met)

    @property
    def sizes(self) -> list[int]:
        return sorted({size for group in self.traits.groups for size in (group.block_size, group.reach) if size})

    def settle(self) -> None:
        settle(self)

    def spare(self, every: int) -> bool:
        return False

    def copies_of(self, method: Callable[..., Any], *args: Any) -> list[Any] | None:
        return self.groups.copies(method, *args)

    def copies_text(self, due: Sequence[Any]) -> str:
        return copies_text(due)

    def copy(self, due: Sequence[Any], when: str = "") -> None:
        copy(self, due)
        self.goals_met["copies"] += bool(due)

    def write_and_read(self) -> None:
        if self.ask != "late":
            for pool, free in self.groups.free().items():
                self.kv.poison(pool, free)
        reading.write_and_read(self)

    def forward(self, accept: int | dict[str, int] | None, abort: Sequence[str], reverse: bool | None) -> Answer:
        before = self.goals_met["rejected_drafts"]
        answer = super().forward(accept, abort, reverse)
        self.goals_met["state_behind_draft"] += self.goals_met["rejected_drafts"] > before and bool(self.groups.states)
        return answer

    def fork(self, name: str, child: str) -> Answer:
        answer = super().fork(name, child)
        self.goals_met["state_forked"] += bool(self.groups.states) and not answer.refused
        return answer

    def admit(self, name: str, tokens: Sequence[int], extra_key: int | None, n: int) -> Answer:
        answer = super().admit(name, tokens, extra_key, n)
        if not answer.refused:
            self.progress.hit(self.live[name], resumed=False)
        return answer

    def resume(self, name: str, n: int) -> Answer:
        answer = super().resume(name, n)
        if not answer.refused:
            self.progress.hit(self.live[name], resumed=True)
        return answer

    def admitted(self, answer: Any, n: int) -> tuple[Any, int]:
        if not isinstance(answer, Admitted):
            return answer, n
        self._check_cut("admit", answer.n, n)
        return answer.cached, answer.n

    def reserved(self, request: Request, answer: Any, n: int) -> int:
        if isinstance(answer, bool) or not isinstance(answer, int) or answer == n:
            return n
        if request.drafts:
            raise Divergence(ERROR_CONTRACT.id, f"reserve took {answer} tokens of a decode with drafts, not all {n}")
        self._check_cut("reserve", answer, n)
        return answer

    def check_refused_admission(self, request: Request, before: Any) -> None:
        refusals.check_admission(self, request, before)

    def check_refused_reservation(self, request: Request, n: int, before: Any, appended: bool) -> None:
        refusals.check_reservation(self, request, n, before, appended)

    def check_unchanged(self, before: Any, what: str) -> None:
        refusals.check_unchanged(self, before, what)

    def limbo_by_pool(self) -> dict[str, int]:
        """How many blocks of each pool wait to be released, as far as the manager says."""
        return self.groups.counts(self.adapter.limbo) if self.traits.late_release else dict.fromkeys(self.seen, 0)

    def check_evicted(self) -> None:
        limbo = self.limbo_by_pool()
        tables, held, free_now = self.groups.tables(self.live), self.groups.held(self.live), self.groups.free_now()
        for pool, total in self.groups.pools.items():
            found = occupancy(self, self.live, pool, tables, held)
            observed = free_now[pool], len(found.blocks), total, found.unsure + limbo[pool]
            self.checks.check(laws.eviction_complete, *observed, name=of_pool(self, pool))

    def check_reset(self) -> None:
        avail, free_now, limbo = self.groups.avail(), self.groups.free_now(), self.limbo_by_pool()
        for pool, total in self.groups.pools.items():
            observed = avail[pool], free_now[pool], total, limbo[pool]
            self.checks.check(laws.reset_complete, *observed, name=of_pool(self, pool))
        self.kv.reset()

    def table_of(self, name: str) -> Any:
        groups = range(len(self.groups.groups))
        attention = set(self.groups.attention)
        return tuple(
            tuple(as_state(self.adapter.slots if g in attention else self.adapter.held, name, g) or ()) for g in groups
        )

    def lacking(self) -> dict[str, str]:
        return lacking(laws, self)

    def unreachable(self) -> set[str]:
        return goals.unreachable(self)

    def _check_cut(self, what: str, taken: int, n: int) -> None:
        if not self.traits.cuts_chunks or not 1 <= taken <= n:
            raise Divergence(ERROR_CONTRACT.id, f"{what} took {taken} tokens of {n}")
        self.goals_met["chunk_cut"] += taken < n
