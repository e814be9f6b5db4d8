"""Faults of kv_manager: withdrawing an admission or a reservation."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_manager.copies import SourceNotHeld
from kvlockstep.reference.kv_manager.manager import KVManager


@fault("kv-withdraw-leaks", law="accounting", seen=("mutant",))
class WithdrawLeaks(KVManager):
    """Withdrawing a reservation frees only the first of its new blocks."""

    def withdraw(self, rid: str) -> None:
        request = self._live[rid]
        if request.base is not None:
            del request.table[len(request.base) + 1 :]
        super().withdraw(rid)


@fault("kv-withdraw-copies", law="leak_freedom", seen=("mutant",))
class WithdrawKeepsCopy(KVManager):
    """Withdrawing a reservation keeps its pending copy."""

    def withdraw(self, rid: str) -> None:
        due = [entry for entry in self._due if entry[0] == rid]
        super().withdraw(rid)
        self._due += due
        for _, source, _ in due:
            self._hold(source)


@fault("kv-withdraw-published", law="prefix_soundness", seen=("vllm#41400",))
class WithdrawStaysPublished(KVManager):
    """A prompt is published at admission and stays published when the admission is withdrawn."""

    early_publish = True

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            request = self._live[rid]
            for i in range(cached // self.block_size, min(cached + n, len(tokens)) // self.block_size):
                key = (extra_key, tuple(tokens[: (i + 1) * self.block_size]))
                if key not in self._cached:
                    self._cached[key] = request.table[i]
                    self._key_of[request.table[i]] = key
        return cached


@fault("kv-copy-withdrawn", law="prefix_soundness", seen=("mutant",))
class WritesPublished(KVManager):
    """The last holder writes a copy's source in place, even if the copy is then withdrawn."""

    def reserve(self, rid: str, n: int) -> bool:
        sources = [source for _, source, _ in self._due]
        for source in sources:
            self._refs[source] -= 1
        accepted = super().reserve(rid, n)
        for source in sources:
            self._refs[source] += 1
        return accepted


@fault("kv-withdraw-keeps-hit", law="leak_freedom", seen=("LMCache#2785",))
class WithdrawKeepsHit(KVManager):
    """Withdrawing an admission frees its new blocks but keeps the references on its hit."""

    def withdraw(self, rid: str) -> None:
        request = self._live[rid]
        if request.base is None:
            del request.table[: request.computed // self.block_size]
        super().withdraw(rid)


@fault("kv-source-taken-back", law="prefix_soundness", seen=("mutant",))
class SourceTakenBack(SourceNotHeld):
    """A copy's source is released at once, and a withdrawal takes it back even from a new owner."""

    def launch(self) -> None:
        self._due.clear()

    def withdraw(self, rid: str) -> None:
        for _, source, _ in [due for due in self._due if due[0] == rid]:
            if source in self._free:
                self._free.remove(source)
            self._hold(source)
        super().withdraw(rid)


@fault("kv-namesakes-copies", law="content_equality", seen=("mutant",))
class NamesakesCopies(KVManager):
    """Withdrawing r1 also drops the pending copies of r10 and every name that begins with r1."""

    def withdraw(self, rid: str) -> None:
        super().withdraw(rid)
        for _, source, _ in [due for due in self._due if due[0].startswith(rid)]:
            self._drop(source)
        self._due = [due for due in self._due if not due[0].startswith(rid)]


@fault("kv-others-copies", law="content_equality", seen=("mutant",))
class OthersCopiesDropped(KVManager):
    """Withdrawing a request with a pending copy drops the pending copies of all requests."""

    def withdraw(self, rid: str) -> None:
        copied = any(due[0] == rid for due in self._due)
        super().withdraw(rid)
        for _, source, _ in self._due if copied else ():
            self._drop(source)
        self._due = [] if copied else self._due


@fault("kv-withdraw-token", law="prefix_soundness", seen=("mutant",))
class WithdrawTakesToken(KVManager):
    """Withdrawing a decode also drops the token that was sampled before it."""

    def withdraw(self, rid: str) -> None:
        request = self._live[rid]
        super().withdraw(rid)
        if request.base is not None and len(request.tokens) == request.computed + 1:
            request.tokens.pop()
