"""Faults of radix_cache: reset."""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.radix_cache import RadixCache


@fault("radix-reset-held", law="reset_complete", seen=("seed 001",))
class ResetKeepsHeld(RadixCache):
    """A reset loses the slots that the caller holds."""

    def reset(self) -> None:
        held: set[int] = getattr(self, "_held", set())
        super().reset()
        self._free = [page for page in self._free if page not in held]


@fault("radix-reset-tree", law="no_double_free", seen=("seed 001", "transformers#31917"))
class ResetKeepsTree(RadixCache):
    """A reset keeps the cached tree."""

    def reset(self) -> None:
        tree: Any = getattr(self, "_tree", None)
        super().reset()
        if tree is not None:
            self._tree = tree
            cached = {page for page, _ in tree.entries().values()}
            self._free = [page for page in self._free if page not in cached]


@fault("radix-reset-missing", law="error_contract", seen=("seed 001",))
class ResetIsMissing(RadixCache):
    """reset raises NotImplementedError."""

    def reset(self) -> None:
        if hasattr(self, "_held"):
            raise NotImplementedError("reset")
        super().reset()


@fault("radix-reset-cached", law="reset_complete", seen=("vllm#57727",))
class ResetKeepsCached(RadixCache):
    """With nothing locked, a reset takes back held slots but keeps the cached pages."""

    def reset(self) -> None:
        tree = getattr(self, "_tree", None)
        super().reset()
        if tree is not None and not tree.counts()[1]:
            self._tree._entries = tree._entries
            self._free = [page for page in self._free if page not in tree.eviction_order()]
