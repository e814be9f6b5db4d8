"""What a check says first of an adapter that is wrong, each in one way: docs/guide.md promises it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from places import ROOT

from kvlockstep.core.profiles import profile_of
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.runs.check import check_target
from kvlockstep.targets import Target

GUIDE = (ROOT / "docs" / "guide.md").read_text()


class NoneForNoHit(KVManager):
    def admit(self, rid, tokens, extra_key, n):
        return super().admit(rid, tokens, extra_key, n) or None


class CountsBehindTheEnd(KVManager):
    def admit(self, rid, tokens, extra_key, n):
        hit = len(self._lookup(tokens, extra_key)) * self.block_size
        room = len(self._free) + sum(block not in self._lookup(tokens, extra_key) for block in self._idle)
        if hit and self._blocks_for(hit + n) - hit // self.block_size > room:
            return None
        return super().admit(rid, tokens, extra_key, n)


class CountsBlocks(KVManager):
    def avail(self):
        return super().avail() // self.block_size


class NamesBlocks(KVManager):
    def slots(self, rid):
        return list(self._live[rid].table)


class CommitsNothing(KVManager):
    def commit(self, rid, n):
        pass


class PreemptsNothing(KVManager):
    def preempt(self, rid):
        pass


class CopiesBlocks(KVManager):
    def copies(self):
        return [(source, target) for _, source, target in self._due]


class DropsTheKey(KVManager):
    def admit(self, rid, tokens, extra_key, n):
        return super().admit(rid, tokens, None, n)


class FreeIsAvailable(KVManager):
    free_now = KVManager.avail


class CachedIsFree(KVManager):
    def free_slots(self) -> Iterable[int]:
        blocks = [*self._free, *self._idle]
        return [block * self.block_size + i for block in blocks for i in range(self.block_size)]


MISTAKES = {
    NoneForNoHit: ("admission_honesty", "admission of 1 token was refused"),
    CountsBehindTheEnd: ("admission_honesty", "held by no live request"),
    CountsBlocks: ("leak_freedom", "do both count slots, not blocks?"),
    NamesBlocks: ("coverage", "1 slot at launch for 2 positions of r0"),
    CommitsNothing: ("coverage", "1 slot at launch for 2 positions of r0"),
    PreemptsNothing: ("leak_freedom", "1 slot leaked, in block 0"),
    CopiesBlocks: ("content_equality", "holds freed memory"),
    DropsTheKey: ("prefix_soundness", "under key 0"),
    FreeIsAvailable: ("free_count", "cached and counted as free"),
    CachedIsFree: ("prefix_soundness", "holds freed memory"),
}


@pytest.mark.parametrize("adapter", MISTAKES, ids=lambda adapter: adapter.__name__)
def test_the_first_finding_leads_to_the_mistake(adapter, tmp_path):
    law, said = MISTAKES[adapter]
    target = Target("kv_manager", adapter.__name__, adapter)
    result = check_target(target, profile_of("quick"), seed=0, directory=tmp_path, drivers=("explore", "random"))
    (failed,) = result.failures
    assert failed.failure.law == law, failed.failure.message
    assert said in failed.failure.message


def test_the_guide_has_a_row_for_each():
    def words(text):
        return set(re.findall("[a-z]{3,}", text))

    rows = re.findall(r"^\| `(\w+)`: (.+?) \|", GUIDE, re.MULTILINE)
    assert {law for law, _ in rows} == {law for law, _ in MISTAKES.values()}
    for law, said in MISTAKES.values():
        assert any(known == law and len(words(said) & words(row)) > 1 for known, row in rows), said
