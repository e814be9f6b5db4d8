"""kv_managers with moves that are right in another way than the reference."""

from __future__ import annotations

from collections import Counter
from functools import partial

from kvlockstep.reference.kv.transfers import Fetching, Loading
from kvlockstep.reference.kv_manager.fetching import FetchingManager
from kvlockstep.reference.kv_manager.moving import DISK
from kvlockstep.reference.kv_manager.tiered import TieredManager


class AsksTwice(FetchingManager):
    """Lets a request wait for its fetch twice at most; then it is admitted without, and what is fetched comes later."""

    patience = 2

    def __init__(self, blocks: int, block_size: int) -> None:
        self._told: Counter[str] = Counter()
        super().__init__(blocks, block_size)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | Loading | Fetching | None:  # type: ignore[override]
        admit = partial(TieredManager.admit, self) if self._told[rid] >= self.patience else super().admit
        answer = admit(rid, tokens, extra_key, n)
        if isinstance(answer, Fetching):
            self._told[rid] += 1
        elif answer is not None:
            # One that is refused keeps what it has waited: it counts until the request is admitted.
            del self._told[rid]
        return answer


class FetchesAhead(FetchingManager):
    """Fetches what is on the disk when a request asks, and admits it with what is there; nobody is put off."""

    patience = 0

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | Loading | None:  # type: ignore[override]
        self._fetch(rid, self._behind(tokens, extra_key))
        return TieredManager.admit(self, rid, tokens, extra_key, n)


class OnlyDiskFails(FetchingManager):
    """Its host tier never fails, and loses nothing."""

    fails = {DISK: "any"}


FETCHING_VARIANTS = {
    "asks-twice": AsksTwice,
    "fetches-ahead": FetchesAhead,
    "only-disk-fails": OnlyDiskFails,
}
