"""Faults of kv_manager with groups: recurrent states, which stand for a whole prefix and are rewritten in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv.memory import KVMemory
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.groups.geometries import FullAndState, StatePool
from kvlockstep.reference.kv_manager.groups.request import Request


@fault("kv-state-in-place", law="state_soundness", seen=("vllm#57908",))
class StateInPlace(FullAndState):
    """A request goes on in the block of a state that is published."""

    def _own_state(self, g: int, request: Request) -> int | None:
        state = request.states[g]
        return state if state is not None and self._pool(g).refs[state] == 1 else None


@fault("kv-state-shared", law="state_soundness", seen=("mutant",))
class StateShared(FullAndState):
    """A fork shares the state of its parent, and both go on in it."""

    def fork(self, rid: str, child: str) -> list[tuple[Any, ...]] | None:
        copies = super().fork(rid, child)
        for g, own in enumerate(self._live[child].states if copies is not None else ()):
            shared = self._live[rid].states[g]
            if own is not None and shared is not None:
                self._pool(g).drop(own)
                self._pool(g).hold(shared)
                self._live[child].states[g] = shared
        return [] if copies is not None else None

    def _own_state(self, g: int, request: Request) -> int | None:
        state = request.states[g]
        return state if state is not None and state not in self._pool(g).key_of else None


@fault("kv-state-ahead", law="state_soundness", seen=("mutant",))
class StateAhead(FullAndState):
    """The state behind the last draft is kept, whatever was accepted."""

    def _keep_state(self, g: int, request: Request) -> None:
        saves = request.saves[g]
        last = max(saves)
        saves[request.computed], saves[last] = saves[last], saves[request.computed]
        super()._keep_state(g, request)


@fault("kv-state-late", law="state_soundness", seen=("mutant",))
class StateLate(FullAndState):
    """A checkpoint is published one step after its block was written on."""

    def reset(self) -> None:
        super().reset()
        self._late: dict[int, tuple[int, int]] = {}

    def _publish(self, g: int, request: Request, place: int, block: int) -> None:
        if self.groups[g].kind == "state":
            self._late[id(request)] = place, block
        else:
            super()._publish(g, request, place, block)

    def _keep_state(self, g: int, request: Request) -> None:
        late = self._late.pop(id(request), None)
        super()._keep_state(g, request)
        if late is not None and late[1] == request.states[g]:
            super()._publish(g, request, *late)

    def finish(self, rid: str) -> None:
        self._late.pop(id(self._live[rid]), None)
        super().finish(rid)


@fault("kv-state-shorter-than-kv", law="state_soundness", seen=("Megatron-LM#6416 (b)",))
class ShorterThanKV(FullAndState):
    """A hit is as long as its attention blocks, and takes the state of a shorter prefix."""

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        if self.groups[g].kind != "state":
            return super()._serves(g, tokens, extra_key, cached)
        return cached % self.block_size == 0 and self._last(g, tokens, extra_key, cached) is not None

    def _hit(self, tokens: list[int], extra_key: int | None, cached: int) -> Request:
        request = super()._hit(tokens, extra_key, cached)
        request.states[1] = self._last(1, tokens, extra_key, cached) if cached else None
        return request

    def _last(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> int | None:
        places = range(cached // self.groups[g].block_size - 1, -1, -1)
        found = (self._find(g, tokens, extra_key, place) for place in places)
        return next((state for state in found if state is not None), None)


@fault("kv-state-miss-kept", law="state_soundness", seen=("vllm#43090",))
class MissKept(FullAndState):
    """A hit of attention blocks is kept though it has no state, and the state begins anew behind it."""

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        return self.groups[g].kind == "state" or super()._serves(g, tokens, extra_key, cached)


@fault("kv-state-wrong-column", law="state_soundness", seen=("vllm#53142",))
class WrongColumn(StatePool):
    """The column of a state that is hit is computed with the block size of another group."""

    def _hit(self, tokens: list[int], extra_key: int | None, cached: int) -> Request:
        request = super()._hit(tokens, extra_key, cached)
        if cached:
            wrong = self._find(2, tokens, extra_key, (cached - 1) // (4 * self.block_size))
            request.states[2] = wrong if wrong is not None else request.states[2]
        return request


@fault("kv-state-half-taken", law="atomicity", seen=("Megatron-LM#6091",))
class StateHalfTaken(StatePool):
    """A reservation takes a state for each draft until none is free, and a refusal keeps those."""

    def reserve(self, rid: str, n: int) -> bool:
        if super().reserve(rid, n):
            return True
        pool = self._pools["states"]
        self._live[rid].saves[2] = {-stop: pool.take() for stop in self._live[rid].stops(n) if pool.room()}
        return False


@fault("kv-states-locked", law="error_contract", seen=("sglang#36770",))
class StatesLocked(StatePool):
    """An admission assumes that a state can always be evicted, and fails where all are held."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        assert cached is not None or self._pools["states"].room(), "no recurrent slot"
        return cached


@fault("kv-state-drafts-in-one", law="no_aliasing", seen=("mutant",))
class DraftsInOne(FullAndState):
    """The states behind all drafts of a step are saved to one block."""

    def state(self, rid: str, group: int) -> Step:
        source, saves, *_ = super().state(rid, group)
        blocks = [block for _, block in saves]
        return Step(source, [(position, blocks[0]) for position, _ in saves])


@fault("kv-state-draft-leak", law="accounting", seen=("mutant",))
class DraftLeak(FullAndState):
    """The states behind rejected drafts are forgotten and never freed."""

    def _keep_state(self, g: int, request: Request) -> None:
        kept = request.saves[g][request.computed]
        request.saves[g] = {request.computed: kept}
        super()._keep_state(g, request)


@fault("kv-state-unsaved", law="coverage", seen=("mutant",))
class Unsaved(FullAndState):
    """No state is saved behind the last draft of a step."""

    def state(self, rid: str, group: int) -> Step:
        source, saves, *_ = super().state(rid, group)
        some = list(saves)
        return Step(source, some[:-1] if len(some) > 1 else some)


@fault("kv-state-from-nothing", law="state_soundness", seen=("mutant",))
class FromNothing(FullAndState):
    """A resumed request begins its state anew behind its hit."""

    def _hit(self, tokens: list[int], extra_key: int | None, cached: int) -> Request:
        request = super()._hit(tokens, extra_key, cached)
        request.states = [None, None]
        return request


@fault("kv-state-off-the-grid", law="state_soundness", seen=("vllm#43559",))
class OffTheGrid(FullAndState):
    """A state is published for the block in which its step ended, not only where a block ends."""

    def _keep_state(self, g: int, request: Request) -> None:
        super()._keep_state(g, request)
        place, state = request.computed // self.block_size, request.states[g]
        if request.computed % self.block_size and state is not None and len(request.tokens) > request.computed:
            self._publish(g, request, place, state)


class WithoutLastRows(KVMemory):
    """Memory of blocks of `rows` rows: a copy leaves out the last row of each."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        super().copy([pair for pair in pairs if (pair[0] + 1) % self._rows or self._rows == 1])


@fault("kv-state-copied-in-part", law="state_soundness", seen=("mutant",))
class StateCopiedInPart(FullAndState):
    """A copy of a block leaves out its last row, which a state has and a partly filled block has not."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self.memory = {"kv": WithoutLastRows(block_size)}
