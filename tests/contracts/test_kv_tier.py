"""kv_tier: the laws bite and blame no variant, our tiers hold, and a directory outlives its process at any write."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
from driving import explore, walk
from places import DOCS
from slow import slow
from watched import watched

from kvlockstep.core.failure_page import failure_page
from kvlockstep.impl.kv_tier.directory import DirectoryTier, on_disk, packed, unpacked
from kvlockstep.impl.kv_tier.folder import DiskFolder, MemoryFolder
from kvlockstep.impl.kv_tier.tier import Tier, arc, lru
from kvlockstep.impl.variants.kv_tier import VARIANTS
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.kv_tier.model import KVTierModel, TierScope
from kvlockstep.properties import kv_tier as laws
from kvlockstep.properties.kv_tier import Fate, Looked, Planned, Pool
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv_tier import KVTier
from kvlockstep.reference.kv_tier.contract import HIT, MISS, PENDING, Key, StorePlan
from kvlockstep.targets import resolve

PAGE = DOCS / "kv_tier.md"
A, B, C, D = (Key(n) for n in range(4))
ME = "me"


def put(tier: Any, *keys: Key) -> StorePlan:
    """Stores chunks and completes the store."""
    plan = tier.store(keys, ME)
    for key in plan.units if hasattr(tier, "write") else ():
        tier.write(plan.id, key, data(key))
    tier.complete(plan.id, True)
    return plan


def data(key: Key) -> bytes:
    """The bytes of a chunk."""
    return f"chunk {key.hash} of {key.extra_key}".encode() * 9


def play(factory: Any, *ops: Op, units: int = 2) -> KVTierModel:
    """The model after these operations."""
    model = KVTierModel(TierScope(units, 4), factory)
    for op in ops:
        model.step(op)
    return model


def store(*hashes: int, owner: str = "a") -> Op:
    return Op("store", keys=[(n, None) for n in hashes], owner=owner)


def load(*hashes: int, owner: str = "a") -> Op:
    return Op("load", keys=[(n, None) for n in hashes], owner=owner)


DONE = Op("complete", nth=0, ok=True)


@pytest.mark.parametrize("tier", VARIANTS.values(), ids=VARIANTS)
def test_no_variant_is_blamed(tier):
    outcome = walk(KVTierModel, tier, 5_000, seed=11)
    assert outcome.failure is None, failure_page(outcome.failure)
    missed = {goal.id for goal in KVTierModel.goals if not outcome.reach[goal.id]}
    assert missed <= (outcome.unreachable or set())


def test_variants_are_targets():
    assert resolve("kv_tier", "variant:first-in-first-out").factory is VARIANTS["first-in-first-out"]


@pytest.mark.parametrize("factory", [KVTier, *slow(arc)])
def test_every_state_of_a_small_scope_holds(factory):
    outcome = watched(explore, KVTierModel, factory, KVTierModel.small_scopes[0])
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.exhausted


def test_the_example_of_the_docs_holds(tmp_path, monkeypatch, run_cli):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_tier.py").write_text(example)
    code, out, _ = run_cli("check", "kv_tier", "--target", "my_tier.py:MyTier", "--driver", "random")
    assert code == 0, out


def test_a_finding_reads_as_it_happened(run_cli):
    _, out, _ = run_cli("check", "kv_tier", "--target", "fault:tier-evicts-everything", "--driver", "random")
    assert "store keys=[(0,None)] owner=a" in out
    assert "store of 1 chunk with 0 free units evicted 2 chunks" in out


def test_answers_of_another_type_are_named():
    class Answers(KVTier):
        wrong: Any = None

        def lookup(self, key, owner):
            return self.wrong or super().lookup(key, owner)

        def store(self, keys, owner):
            return [1, 2] if self.wrong else super().store(keys, owner)

        def events(self):
            return ["stored"] if self.wrong == "event" else super().events()

    class Yes(Answers):
        wrong = "yes"

    class Event(Answers):
        wrong = "event"

    with pytest.raises(Divergence, match="lookup returned 'yes', not miss, pending or hit"):
        play(Yes, Op("lookup", keys=[(0, None)], owner="a"))
    with pytest.raises(Divergence, match=r"store returned \[1, 2\], not a plan with its units by key"):
        play(Yes, store(0))
    with pytest.raises(Divergence, match="events returned 'stored', not an event"):
        play(Event)


@pytest.mark.parametrize(
    "op",
    [
        Op("complete", nth=0, ok=True),
        Op("complete_again", ok=True),
        Op("write", nth=0),
        Op("reopen"),
        Op("damage", keys=[(0, None)], how="lose"),
        Op("store", keys=[(0, None), (0, None)], owner="a"),
        Op("store", keys=[], owner="a"),
        Op("nonsense"),
    ],
)
def test_what_is_not_legal_is_not_played(op):
    with pytest.raises(NotEnabled):
        play(KVTier, op)


def test_a_load_takes_the_hits_before_the_first_miss():
    model = play(KVTier, store(0, 1), DONE)
    assert model.step(load(0, 1, 2)) == "load 1 of 0, 1"
    assert model.step(load(2, 0)) == "nothing"


def test_a_picture_shows_who_holds_a_unit():
    model = play(KVTier, store(0), DONE, load(0), Op("pin", keys=[(0, None)], owner="b"))
    cells = model.picture().cells
    assert cells[0].holders == ("load 1", "pin of b")
    assert cells[1].state == "free"


POOL = Pool([2], 2, frozenset([0]), frozenset([1]), 3)
PLAN = Planned([A], [(A, 2)], [], {B: 0}, frozenset([C]), frozenset([1]), frozenset(), 1, 3, 1, [A, B])


def looked(answer: str, fate: Fate, **changes: Any) -> Looked:
    return Looked(A, answer, fate, True, False)._replace(**changes)


@pytest.mark.parametrize(
    ("law", "right", "wrong"),
    [
        (laws.visible_when_written, looked(HIT, Fate.STORED), looked(HIT, Fate.ABSENT)),
        (laws.visible_when_written, looked(PENDING, Fate.STORING), looked(PENDING, Fate.FAILED)),
        (
            laws.visible_when_written,
            looked(MISS, Fate.STORING, pending_visible=False),
            looked(MISS, Fate.STORING),
        ),
        (laws.failure_visible, looked(MISS, Fate.FAILED), looked(HIT, Fate.FAILED)),
        (laws.evicted_exact, looked(MISS, Fate.EVICTED), looked(HIT, Fate.EVICTED)),
        (laws.evicted_exact, looked(MISS, Fate.DAMAGED), looked(MISS, Fate.STORED)),
        (laws.evicted_exact, looked(MISS, Fate.LOST), looked(HIT, Fate.LOST)),
        (
            laws.plan_exact,
            PLAN._replace(offered=[A, B], evicted=[B], spared=[A]),
            PLAN._replace(offered=[A, B], evicted=[B]),
        ),
        (laws.evicted_exact, PLAN._replace(units=[(A, 0)], evicted=[B]), PLAN._replace(units=[(A, 0)])),
        (laws.evicted_exact, PLAN, PLAN._replace(evicted=[D])),
        (laws.eviction_bounded, PLAN._replace(evicted=[B], free=0), PLAN._replace(evicted=[B])),
        (
            laws.eviction_bounded,
            PLAN._replace(evicted=[B, D], free=0, batch=2),
            PLAN._replace(evicted=[B, D], free=0),
        ),
        (laws.pinned, PLAN, PLAN._replace(units=[(A, 1)])),
        (laws.pinned, PLAN, PLAN._replace(chunks={B: 1}, evicted=[B])),
        (laws.pinned, POOL, POOL._replace(free=[1, 2])),
        (laws.no_aliasing, PLAN, PLAN._replace(units=[(A, 2), (D, 2)])),
        (laws.no_aliasing, PLAN, PLAN._replace(units=[(A, 3)])),
        (laws.plan_exact, PLAN, PLAN._replace(units=[])),
        (
            laws.plan_exact,
            PLAN._replace(units=[], optional=frozenset([A]), spared=[]),
            PLAN._replace(units=[(A, 2), (D, 0)]),
        ),
        (laws.plan_exact, PLAN._replace(offered=[A, B, C]), PLAN._replace(offered=[A, C], units=[(A, 2), (C, 0)])),
        (laws.refusal_honest, laws.Refusal(3, 2), laws.Refusal(2, 2)),
        (laws.backed, laws.Loaded([A], [A]), laws.Loaded([A], None)),
        (laws.backed, laws.Loaded([A, B], [B, A]), laws.Loaded([A, B], [A])),
        (laws.content_equality, laws.Read(A, 0, "x", "x", "ends"), laws.Read(A, 0, "y", "x", "ends")),
        (laws.no_double_free, POOL, POOL._replace(free=[2, 2])),
        (laws.no_double_free, POOL, POOL._replace(free=[2, 3])),
        (laws.tier_accounting, POOL, POOL._replace(free=[])),
        (laws.tier_accounting, POOL, POOL._replace(free=[0, 2])),
        (laws.tier_accounting, POOL, POOL._replace(avail=3)),
        (laws.tier_accounting, POOL, POOL._replace(avail=1)),
        (laws.quiescence, POOL, POOL._replace(held=frozenset())),
        (laws.reset_complete, POOL, POOL._replace(cached=frozenset())),
        (laws.reset_complete, looked(MISS, Fate.RESET), looked(HIT, Fate.RESET)),
        (laws.reset_complete, looked(MISS, Fate.FORGOTTEN), looked(HIT, Fate.FORGOTTEN)),
        (
            laws.event_consistency,
            laws.Announced(frozenset([A]), frozenset([A])),
            laws.Announced(frozenset([A]), frozenset()),
        ),
        (
            laws.event_consistency,
            laws.Announced(frozenset(), frozenset()),
            laws.Announced(frozenset(), frozenset([A])),
        ),
        (laws.whole_or_none, laws.Bytes(A, b"ab", b"ab", False), laws.Bytes(A, b"a", b"ab", True)),
        (laws.whole_or_none, laws.Bytes(A, None, b"ab", True), laws.Bytes(A, None, b"ab", False)),
        (laws.crash_consistency, POOL, POOL._replace(free=[0, 2])),
        (laws.crash_consistency, POOL, POOL._replace(free=[])),
        (laws.crash_consistency, looked(MISS, Fate.CUT), looked(HIT, Fate.CUT)),
        (laws.crash_consistency, looked(HIT, Fate.STORED, reopened=True), looked(MISS, Fate.STORED, reopened=True)),
    ],
)
def test_a_law_tells_right_from_wrong(law, right, wrong):
    assert law(right) is None
    assert law(wrong)


def test_nothing_may_change_where_there_is_nothing_to_do():
    assert laws.idempotent(POOL, POOL._replace(free=list(reversed(POOL.free)))) is None
    assert laws.idempotent(POOL, POOL._replace(avail=3))
    assert laws.idempotent(POOL, POOL._replace(free=[]))


@pytest.mark.parametrize("make", [KVTier, lru, arc, DirectoryTier])
def test_a_tier_has_units(make):
    with pytest.raises(InvalidArgument, match="units=0"):
        make(0)


def test_lru_evicts_what_was_used_least_recently():
    tier = lru(3)
    for key in (A, B, C):
        put(tier, key)
    tier.touch([A])
    assert put(tier, D).evicted == (B,)


def test_arc_keeps_what_is_used_again_through_a_scan():
    tiers = {"lru": lru(4), "arc": arc(4)}
    for tier in tiers.values():
        put(tier, A, B)
        tier.touch([A, B])
        for n in range(10, 30):
            put(tier, Key(n))
    kept = {name: [tier.lookup(key, ME) for key in (A, B)] for name, tier in tiers.items()}
    assert kept == {"lru": [MISS, MISS], "arc": [HIT, HIT]}


def test_arc_learns_from_what_comes_back_too_late():
    tier = arc(4)
    put(tier, A, B, C, D)
    tier.touch([A, B])
    # C and D were used once and are evicted; both come back, so that the order of what is used once gets more room.
    put(tier, Key(10), Key(11))
    put(tier, C, D)
    assert tier._policy._target > 0


def test_a_tier_without_events_keeps_none():
    tier = Tier(2, events=False)
    put(tier, A, B)
    put(tier, C)
    tier.reset()
    assert not tier.announces
    assert tier.events() == []


def test_a_directory_on_disk_holds(tmp_path):
    paths = iter(range(1_000_000))
    outcome = walk(KVTierModel, lambda units: on_disk(units, tmp_path / str(next(paths))), 3_000, seed=5)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["damage_found"]
    assert outcome.reach["reopened_in_flight"]


def test_a_file_says_whose_bytes_it_has():
    for key in (A, Key(3, -1), Key(2**40, 0)):
        file = packed(1, key, data(key))
        assert unpacked(1, file) == (key, data(key))
        assert unpacked(0, file) is None
        assert all(unpacked(1, file[:n]) is None for n in range(len(file)))
        assert unpacked(1, file[:-1] + b"?") is None
    assert unpacked(1, None) is None


class Killed(BaseException):
    """The process is ended."""


class MortalFolder:
    """A folder whose process is ended in the middle of its `last` change; a write is then done in part."""

    def __init__(self, folder: Any, last: int, kill: Any) -> None:
        self._folder, self._left, self._kill = folder, last, kill
        self.names, self.read = folder.names, folder.read

    def write(self, name: str, content: bytes) -> None:
        if self._left == 1:
            self._folder.write(name, content[: len(content) // 2])
        self._change(self._folder.write, name, content)

    def rename(self, name: str, other: str) -> None:
        self._change(self._folder.rename, name, other)

    def remove(self, name: str) -> None:
        self._change(self._folder.remove, name)

    def _change(self, change: Any, *arguments: Any) -> None:
        self._left -= 1
        if not self._left:
            self._kill()
        change(*arguments)


def live(tier: Any, stored: set[Key], touched: set[Key]) -> None:
    """A life of a tier of three units. `stored` has its chunks, `touched` what the last call is about."""

    def about(*keys: Key) -> None:
        touched.clear()
        touched.update(keys)

    def keep(*keys: Key) -> None:
        about(*keys, A, B, C, D)
        plan = put(tier, *keys)
        stored.difference_update(plan.evicted)
        stored.update(plan.units)
        about()

    keep(A, B)
    keep(C)
    plan = tier.store([D], ME)
    stored.difference_update(plan.evicted)
    tier.write(plan.id, D, data(D))
    about(D)
    tier.complete(plan.id, False)
    keep(D)
    keep(A, C)
    about(A, B, C, D)
    tier.reset()
    stored.clear()
    about()
    keep(B)


def die() -> None:
    raise Killed


def check_opened(tier: Any, stored: set[Key], touched: set[Key]) -> None:
    """Every hit loads its own bytes; what no call was about is there as it was."""
    for key in (A, B, C, D):
        hit = tier.lookup(key, ME) == HIT
        if hit:
            plan = tier.load([key], ME)
            assert tier.read(plan.id, key) == data(key)
            tier.complete(plan.id, True)
        assert hit == (key in stored) or key in touched
    assert put(tier, Key(20), Key(21), Key(22)).units.keys() == {Key(20), Key(21), Key(22)}


def changes_of_a_life() -> int:
    folder = MortalFolder(MemoryFolder(), 10**9, die)
    live(DirectoryTier(3, folder), set(), set())
    return 10**9 - folder._left


def test_a_directory_outlives_its_process_at_any_write():
    changes = changes_of_a_life()
    assert changes > 15
    for last in range(1, changes + 1):
        files, stored, touched = MemoryFolder(), set[Key](), set[Key]()
        with pytest.raises(Killed):
            live(DirectoryTier(3, MortalFolder(files, last, die)), stored, touched)
        check_opened(DirectoryTier(3, files), stored, touched)


@pytest.mark.parametrize("last", range(1, changes_of_a_life(), 5))
def test_a_directory_on_disk_outlives_a_process_that_is_killed(tmp_path, last):
    child = os.fork()
    if not child:
        live(
            DirectoryTier(
                3, MortalFolder(DiskFolder(tmp_path / "kv"), last, lambda: os.kill(os.getpid(), signal.SIGKILL))
            ),
            set(),
            set(),
        )
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it was killed in the middle"
    check_opened(on_disk(3, tmp_path / "kv"), set(), {A, B, C, D})


def test_a_torn_write_would_be_found():
    """The kill between two writes shows a tier that writes under the final name."""
    torn = resolve("kv_tier", "fault:tier-no-rename").factory
    files = MemoryFolder()
    tier = torn(3, files)
    plan = tier.store([A], ME)
    tier.write(plan.id, A, data(A))
    assert DirectoryTier(3, files).lookup(A, ME) == HIT, "though its store was never completed"
