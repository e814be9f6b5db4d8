"""Faults of kv_manager: preemption and resumption."""

from __future__ import annotations

from collections import Counter

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import KVManager, Request


@fault("kv-preempt-leaks", law="accounting", seen=("mutant",))
class PreemptLeaks(KVManager):
    """preempt does not release the last block of the request."""

    def preempt(self, rid: str) -> None:
        self._live[rid].table.pop()
        super().preempt(rid)


@fault("kv-resume-old-table", law="leak_freedom", seen=("vllm-rbln#676",))
class ResumeKeepsTable(KVManager):
    """A resumed request gets its former blocks back, although they were released."""

    def reset(self) -> None:
        super().reset()
        self._former: dict[str, Request] = {}

    def preempt(self, rid: str) -> None:
        self._former[rid] = self._live[rid]
        super().preempt(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        former = self._former.pop(rid, None)
        cached = super().admit(rid, tokens, extra_key, n)
        if former is not None and cached is not None and former.computed > cached:
            self._live[rid].table[: len(former.table)] = former.table[: len(self._live[rid].table)]
        return cached


@fault("kv-resume-short-key", law="prefix_soundness", seen=("mutant",))
class ResumeForgetsTokens(KVManager):
    """A resumed request publishes its blocks without the tokens that it generated before."""

    def reset(self) -> None:
        super().reset()
        self._prompt: dict[str, int] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        prompt = self._prompt.setdefault(rid, len(tokens))
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None and len(tokens) > prompt:
            self._live[rid].tokens[prompt:] = [tokens[0]] * (len(tokens) - prompt)
        return cached


@fault("kv-deferred-by-name", law="accounting", seen=("sglang#36135",))
class DeferredByName(KVManager):
    """A preempted request's blocks are freed later by name, which may mean new blocks then."""

    def reset(self) -> None:
        super().reset()
        self._former: dict[str, list[int]] = {}

    def preempt(self, rid: str) -> None:
        self._former[rid] = self._live.pop(rid).table

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        for other in [name for name in self._former if name != rid]:
            self._free_former(other)
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is None and rid in self._former:
            self._free_former(rid)
            cached = super().admit(rid, tokens, extra_key, n)
        return cached

    def reserve(self, rid: str, n: int) -> bool:
        for name in list(self._former):
            self._free_former(name)
        return super().reserve(rid, n)

    def launch(self) -> None:
        super().launch()
        for name in list(self._former):
            self._free_former(name)

    def _free_former(self, name: str) -> None:
        table = self._former.pop(name)
        for block in reversed(self._live[name].table if name in self._live else table):
            self._drop(block)

    def avail(self) -> int:
        waiting = [block for table in self._former.values() for block in table]
        return super().avail() + sum(self._refs[b] == waiting.count(b) for b in set(waiting)) * self.block_size

    def evict_all(self) -> None:
        for name in list(self._former):
            self._free_former(name)
        super().evict_all()


@fault("kv-stash-stays", law="accounting", seen=("vllm-rbln#676",))
class PreemptStash(KVManager):
    """preempt keeps the stash of reserved blocks, and the resumed table maps one of them."""

    def reset(self) -> None:
        super().reset()
        self._stash: dict[str, int] = {}

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._stash[rid] = self._live[rid].table[-1]

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None and rid in self._stash and self._live[rid].table:
            self._live[rid].table.append(self._stash[rid])
        return cached


@fault("kv-resume-not-refused", law="coverage", seen=("xinfer#405",))
class ResumeNeverRefused(KVManager):
    """Resuming a request that does not fit is reported as success."""

    def reset(self) -> None:
        super().reset()
        self._waiting: set[str] = set()

    def preempt(self, rid: str) -> None:
        super().preempt(rid)
        self._waiting.add(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is None and rid in self._waiting:
            self._live[rid] = Request(list(tokens), extra_key, self._take(len(self._free)), 0)
            return 0
        return cached


@fault("kv-second-preempt", law="leak_freedom", seen=("mutant",))
class SecondPreemptLeaks(KVManager):
    """The second preemption of a request does not release its last block."""

    which = 2

    def reset(self) -> None:
        super().reset()
        self._preempted: Counter[str] = Counter()

    def preempt(self, rid: str) -> None:
        self._preempted[rid] += 1
        if self._preempted[rid] == self.which:
            self._live[rid].table.pop()
        super().preempt(rid)


@fault("kv-fourth-preempt", law="leak_freedom", seen=("mutant",))
class FourthPreemptLeaks(SecondPreemptLeaks):
    """The fourth preemption of a request does not release its last block."""

    which = 4


@fault("kv-resume-exchanges", law="prefix_soundness", seen=("mutant",))
class ResumeExchanges(KVManager):
    """A resumed request gets its last two hit blocks in the wrong order."""

    def reset(self) -> None:
        super().reset()
        self._preempted: set[str] = set()

    def preempt(self, rid: str) -> None:
        super().preempt(rid)
        self._preempted.add(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        hit = (cached or 0) // self.block_size
        if rid in self._preempted and hit > 1:
            table = self._live[rid].table
            table[hit - 2], table[hit - 1] = table[hit - 1], table[hit - 2]
        return cached
