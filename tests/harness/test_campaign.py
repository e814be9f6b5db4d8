"""Campaigns: killed at any point and gone on with, they end as if nothing had happened; so on any number of workers."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque

import pytest
from campaigns import FAST, campaign, is_fork_of_us, sums, traces
from places import ROOT
from slow import slow

from kvlockstep.campaign import fuzz
from kvlockstep.campaign.ledger import FINDINGS_PER_KIND, HISTORY_POINTS, WINDOW, Ledger
from kvlockstep.campaign.ranges import Ranges
from kvlockstep.campaign.shard import ShardReport
from kvlockstep.campaign.store import DirectoryStore
from kvlockstep.campaign.workers import Done
from kvlockstep.core import files
from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import load_trace
from kvlockstep.models.registry import model_of
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.targets import Target, resolve

# Several laws, and failures rare enough that most shards have none of some kinds.
FAULT = "slot_prefix_cache", "fault:prefix-evicts-interior"
SHARDS = 12


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The directory of a campaign that nothing happened to."""
    directory = tmp_path_factory.mktemp("undisturbed")
    done = campaign(resolve(*FAULT), directory, shards=SHARDS, jobs=1)
    assert len(done.findings) > 1
    assert len(done.ledger.done) == SHARDS
    return directory


def require_equal(directory, undisturbed):
    assert sums(directory) == sums(undisturbed)
    assert traces(directory) == traces(undisturbed)


def test_the_number_of_workers_makes_no_difference(tmp_path, undisturbed):
    campaign(resolve(*FAULT), tmp_path, shards=SHARDS, jobs=3)
    require_equal(tmp_path, undisturbed)


@pytest.mark.parametrize("driver", ["random", "guided", "hypothesis"])
def test_a_campaign_in_two_runs_is_one(tmp_path, driver):
    target = resolve("slot_pool", "fault:pool-occupy-toggles")
    campaign(target, tmp_path / "one", shards=6, jobs=1, driver=driver)
    campaign(target, tmp_path / "two", shards=2, driver=driver)
    done = campaign(target, tmp_path / "two", shards=6, driver=driver)
    assert done.findings
    assert done.run_steps < done.steps
    require_equal(tmp_path / "two", tmp_path / "one")


def test_a_worker_that_is_killed(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr("kvlockstep.campaign.running.COMMIT_SECONDS", 0.0)
    killed = []

    def kill(_state):
        if not killed:
            children = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
            for child in [int(p) for p in children.stdout.split() if is_fork_of_us(p)][:1]:
                killed.append(child)
                os.kill(child, signal.SIGKILL)

    campaign(resolve(*FAULT), tmp_path, shards=SHARDS, progress=kill)
    assert killed
    require_equal(tmp_path, undisturbed)


def test_a_worker_that_is_killed_in_a_shard(tmp_path, undisturbed):
    target, parent, died = resolve(*FAULT), os.getpid(), tmp_path / "died"

    def dies_once(*config):
        if os.getpid() != parent and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return target.factory(*config)

    done = campaign(Target(target.contract, target.name, dies_once), tmp_path / "campaign", shards=SHARDS, jobs=1)
    assert any("SIGKILL; not repeated when run alone" in text for text in done.lost_workers)
    require_equal(tmp_path / "campaign", undisturbed)


def test_a_worker_deaf_to_signals_goes_with_its_parent(tmp_path):
    program = (
        "import signal, sys, time\nfrom pathlib import Path\nfrom campaigns import campaign\n"
        "from kvlockstep.reference.slot_pool import SlotPool\nfrom kvlockstep.targets import Target\n"
        "class Deaf(SlotPool):\n"
        "    def occupy(self, slot):\n"
        "        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
        "        Path(sys.argv[1], 'deaf').touch()\n"
        "        time.sleep(3600)\n"
        "campaign(Target('slot_pool', 'deaf', Deaf), Path(sys.argv[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], env=environment, start_new_session=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "deaf").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not left_of(process.pid)


def test_a_campaign_that_is_killed_again_and_again(tmp_path, undisturbed):
    clock = random.Random(1)
    for _ in range(2):
        process = started_apart(tmp_path)
        shards, deadline = shards_in(tmp_path), time.monotonic() + 30
        while shards_in(tmp_path) <= shards and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        time.sleep(clock.random() * 0.2)
        assert process.poll() is None
        process.kill()
        process.wait()
        assert not left_of(process.pid), "its workers live on"
    assert shards_in(tmp_path) < SHARDS
    assert started_apart(tmp_path).wait(60) == 0
    require_equal(tmp_path, undisturbed)


def started_apart(directory, before=""):
    """The campaign in a process of its own, which leads a session; no campaign of the command line is so small."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom campaigns import campaign\n"
        f"from kvlockstep.targets import resolve\n{before}\n"
        f"campaign(resolve(*{FAULT!r}), Path(sys.argv[1]), shards={SHARDS}, jobs=1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    return subprocess.Popen(
        [sys.executable, "-c", program, directory], env=environment, start_new_session=True, stderr=subprocess.PIPE
    )


def shards_in(directory):
    journal = directory / "journal.0"
    return journal.read_text().count('"record":"shard"') if journal.exists() else 0


def left_of(session, seconds=5.0):
    """Processes of a session that do not end in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = subprocess.run(["pgrep", "-s", str(session)], capture_output=True, text=True, check=False).stdout
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


class Fails:
    """A disk that is full from the n-th call on; of a write, half is done. `end` is what then happens."""

    def __init__(self, monkeypatch, after, end):
        self.left = after
        self.end = end
        self.owner = os.getpid()
        for name in ("open", "write", "fsync", "replace"):
            monkeypatch.setattr(files.os, name, self._limited(name, getattr(os, name)))

    def _limited(self, name, call):
        def limited(*arguments, **named):
            if self.owner == os.getpid() and (name != "open" or arguments[1] & os.O_CREAT):
                self.left -= 1
                if self.left < 0:
                    if name == "write":
                        call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                    self.end()
            return call(*arguments, **named)

        return limited


def no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("killed", [True, *slow(False)])
def test_a_disk_that_is_full_and_a_kill_at_any_write(tmp_path, monkeypatch, killed):
    target = resolve("slot_pool", "fault:pool-occupy-toggles")
    monkeypatch.setattr("kvlockstep.campaign.running.COMMIT_SECONDS", 0.0)
    monkeypatch.setattr("kvlockstep.campaign.running.STATUS_SECONDS", 0.0)
    monkeypatch.setattr("kvlockstep.campaign.store.CHECKPOINT_BYTES", 6_000)
    campaign(target, tmp_path / "whole", shards=2, jobs=1)
    after, ended = 0, False
    while not ended:
        directory = tmp_path / f"after-{after}"
        ended = (killed_after if killed else full_after)(after, target, directory, monkeypatch)
        campaign(target, directory, shards=2, jobs=1)
        require_equal(directory, tmp_path / "whole")
        after += 1 if after < 8 else 5
    assert after > 30


def full_after(after, target, directory, monkeypatch):
    with monkeypatch.context() as disk:
        fails = Fails(disk, after, no_space)
        with contextlib.suppress(UsageError):
            campaign(target, directory, shards=2, jobs=1)
    return fails.left >= 0


def killed_after(after, target, directory, monkeypatch):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    Fails(monkeypatch, after, lambda: os.kill(os.getpid(), signal.SIGKILL))
    campaign(target, directory, shards=2, jobs=1)
    os._exit(0)


def test_a_real_limit_on_files(tmp_path, undisturbed):
    """The kernel ends a write in the middle of a line."""
    limit = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))"
    )
    process = started_apart(tmp_path, limit)
    _, err = process.communicate()
    assert process.returncode == 1
    assert b"File too large; everything found so far is kept" in err
    assert 0 < shards_in(tmp_path) < SHARDS
    campaign(resolve(*FAULT), tmp_path, shards=SHARDS)
    require_equal(tmp_path, undisturbed)


def test_what_a_crash_left_of_a_line_is_cut_off(tmp_path, undisturbed):
    campaign(resolve(*FAULT), tmp_path, shards=5)
    with (tmp_path / "journal.0").open("a") as journal:
        journal.write('{"record":"shard","report":{"shard":5,"st')
    campaign(resolve(*FAULT), tmp_path, shards=SHARDS)
    require_equal(tmp_path, undisturbed)


def test_checkpoints_take_the_place_of_the_journal(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr("kvlockstep.campaign.store.CHECKPOINT_BYTES", 10_000)
    campaign(resolve(*FAULT), tmp_path, shards=7)
    assert len(DirectoryStore(tmp_path).load().ledger.done) == 7
    campaign(resolve(*FAULT), tmp_path, shards=SHARDS)
    assert (tmp_path / "checkpoint.json").is_file()
    assert len(list(tmp_path.glob("journal.*"))) == 1
    require_equal(tmp_path, undisturbed)


def test_another_plan_is_refused(tmp_path, run_cli):
    run_cli("fuzz", "slot_pool", "--target", "pool", "--shards", "1", "--dir", tmp_path / "d")
    code, _, err = run_cli(
        "fuzz", "slot_pool", "--target", "pool", "--shards", "2", "--dir", tmp_path / "d", "--seed", "7"
    )
    assert code == 2
    assert "seed 0, not 7" in err
    assert "another --dir" in err


def test_two_runs_at_once_are_refused(tmp_path):
    target = resolve("slot_pool", "reference")
    with DirectoryStore(tmp_path).lock(), pytest.raises(UsageError, match="is running; see `kvlockstep status"):
        campaign(target, tmp_path, shards=1)


def test_a_damaged_campaign_says_so(tmp_path):
    target = resolve("slot_pool", "reference")
    campaign(target, tmp_path, shards=2)
    (tmp_path / "campaign.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read: JSONDecodeError"):
        campaign(target, tmp_path, shards=2)


class Fixable(SlotPool):
    broken = True

    def occupy(self, slot):
        if type(self).broken and not self.is_free(slot):
            return
        super().occupy(slot)


def test_what_was_fixed_is_no_finding_any_more(tmp_path, monkeypatch):
    target = Target("slot_pool", "fixable", Fixable)
    found = campaign(target, tmp_path, shards=2)
    assert found.verdict == "violated"
    monkeypatch.setattr(Fixable, "broken", False)
    done = campaign(target, tmp_path, shards=4)
    assert not done.findings
    assert not list(tmp_path.glob("findings/*.jsonl"))
    assert len(done.notes) == len(found.findings)
    assert all(note.startswith("FIXED ") for note in done.notes)


def test_failures_that_there_was_no_time_to_shrink_are_kept_and_shrunk_later(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr("kvlockstep.campaign.running.COMMIT_SECONDS", 0.0)
    hurried = campaign(resolve(*FAULT), tmp_path, shards=SHARDS, progress=stop_when_failing())
    assert hurried.interrupted
    assert any(name.startswith("unshrunk-") for name in hurried.findings)
    campaign(resolve(*FAULT), tmp_path, shards=SHARDS)
    require_equal(tmp_path, undisturbed)


def stop_when_failing():
    """Interrupts twice as soon as there is a failure to be shrunk."""

    done = []

    def progress(state):
        if state.ledger.to_shrink and not done:
            done.append(True)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    return progress


def test_the_corpus_replays_and_reaches(undisturbed):
    goals = {goal.id for goal in model_of(FAULT[0]).goals}
    found = sorted((undisturbed / "corpus").glob("*.jsonl"))
    assert found
    for path in found:
        trace = load_trace(path)
        goal = path.stem.removeprefix(f"{FAULT[0]}-")
        assert goal in goals
        model = model_of(FAULT[0])(trace.scope, resolve(*FAULT).factory)
        for op in trace.ops[:-1]:
            model.step(op)
        assert not model.goals_met[goal]
        model.step(trace.ops[-1])
        assert model.goals_met[goal]


def test_status(tmp_path, run_cli):
    run_cli("fuzz", "slot_pool", "--target", "fault:pool-occupy-toggles", "--shards", "3", "--dir", tmp_path / "d")
    code, out, _ = run_cli("status", tmp_path / "d", "--json")
    assert code == 0
    status = json.loads(out)
    assert status["verdict"] == "violated"
    assert status["shards"] == 3
    assert status["episodes"] == 192
    assert not status["running"]
    assert {**status, "running": None} == {**json.loads((tmp_path / "d" / "status.json").read_text()), "running": None}
    _, out, _ = run_cli("status", tmp_path / "d")
    assert "VIOLATED, not running" in out
    assert "no_aliasing in" in out
    assert "missed goals: occupy_held" in out
    code, _, err = run_cli("status", tmp_path)
    assert code == 2
    assert "there is no campaign in" in err
    code, _, _ = run_cli("report", tmp_path / "d", "-o", "page.html")
    assert code == 0


def test_without_a_directory_findings_are_left_for_check(run_cli, tmp_path):
    code, out, _ = run_cli("fuzz", "slot_pool", "--target", "fault:pool-occupy-toggles", "--shards", "2")
    assert code == 1
    assert list((tmp_path / ".kvlockstep/failures").glob("slot_pool-no_aliasing-*.jsonl"))
    assert re.search(r"at this rate [\d,]+ steps in 6 hours", out)
    _, out, _ = run_cli("check", "slot_pool", "--target", "fault:pool-occupy-toggles")
    assert "replay" in out


class Instant:
    """Workers that return shards without playing them, sometimes a later one first."""

    jobs = 4

    def __init__(self, target, *_):
        self.queue = deque()

    def free(self):
        return 4 - len(self.queue)

    def submit(self, task):
        self.queue.appendleft(task) if task.number % 7 == 0 else self.queue.append(task)

    def collect(self, _seconds):
        done, self.queue = [Done(task, answer(task)) for task in self.queue], deque()
        return done[::-1]

    def lost(self):
        return []

    def close(self):
        pass


def answer(task):
    first = task.number * 64
    report = ShardReport(task.number, 10_000, 64, 0, Counter(hit=3), {}, set())
    report.shortest = {"hit": (20, first)}
    return report if task.kind == "shard" else None


def test_memory_does_not_grow_with_the_campaign(tmp_path, monkeypatch):
    """Counts what the parent process keeps after 2,000 and after 20,000 shards."""
    monkeypatch.setattr("kvlockstep.campaign.store.CHECKPOINT_BYTES", 100_000)
    kept, sizes = {}, {}

    def count(state):
        for shards in (2_000, 20_000):
            if shards not in kept and len(state.ledger.done) >= shards:
                gc.collect()
                kept[shards] = len(gc.get_objects())
                sizes[shards] = len(json.dumps(state.ledger.to_json()))
                assert len(state.ledger.done.pairs()) <= 4

    target = resolve("slot_pool", "reference")
    monkeypatch.setattr("kvlockstep.campaign.running.COMMIT_SECONDS", 0.01)
    campaign(target, tmp_path, shards=20_100, make_workers=Instant, progress=count)
    history = HISTORY_POINTS * 4  # points of the history are pairs, and may double until they are halved
    assert kept[20_000] - kept[2_000] < history
    assert sizes[20_000] - sizes[2_000] < history * 8
    assert sum(path.stat().st_size for path in tmp_path.glob("journal.*")) < 300_000


def test_a_slow_shard_holds_back_those_that_are_far_ahead():
    ledger = Ledger()
    begun = {0}
    while (task := ledger.next_shard(begun)) is not None:
        ledger.apply({"record": "shard", "report": answer(task).to_json()})
    assert len(ledger.done) == WINDOW - 1
    begun.clear()
    assert ledger.next_shard(begun).number == 0


def test_of_each_kind_the_first_failures_are_chosen_whatever_comes_back_first(tmp_path):
    done = campaign(resolve("slot_pool", "fault:pool-occupy-toggles"), tmp_path, shards=1)
    (trace, _), *_ = done.findings.values()
    orders = [list(range(10)), list(range(9, -1, -1)), random.Random(0).sample(range(10), 10)]
    chosen = []
    for order in orders:
        ledger = Ledger()
        for shard in order:
            report = ShardReport(shard, failures=1, unreachable=set(), first={"a kind": (shard * 64, trace)})
            ledger.apply({"record": "shard", "report": report.to_json()})
            assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))).to_json() == ledger.to_json()
        chosen.append([failure.episode for failure in ledger.to_shrink])
    assert chosen == [[0, 64, 128, 192][:FINDINGS_PER_KIND]] * 3


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_a_set(seed):
    numbers = random.Random(seed).sample(range(60), 50)
    ranges, plain = Ranges(), set()
    for number in numbers:
        ranges.add(number)
        plain.add(number)
        assert len(ranges) == len(plain)
        assert {n for n in range(70) if n in ranges} == plain
        assert ranges.first_missing() == min(set(range(70)) - plain)
        assert ranges.first_missing(number) == min(n for n in range(number, 70) if n not in plain)
        assert all(end < start for (_, end), (start, _) in zip(ranges.pairs(), ranges.pairs()[1:], strict=False))
        assert Ranges(ranges.pairs()).pairs() == ranges.pairs()
    with pytest.raises(ValueError, match="is there already"):
        ranges.add(numbers[0])


def test_arguments(tmp_path):
    with pytest.raises(UsageError, match="--jobs 0"):
        fuzz(resolve("slot_pool", "reference"), FAST, seconds=1, jobs=0, directory=tmp_path)
    with pytest.raises(UsageError, match="unknown driver 'telepathy'"):
        campaign(resolve("slot_pool", "reference"), tmp_path, driver="telepathy", shards=1)


class BuildsAtFirst(SlotPool):
    built = False

    def alloc(self):
        if not BuildsAtFirst.built:
            BuildsAtFirst.built = True
            time.sleep(1.5)
        return super().alloc()


def test_a_call_that_was_slow_for_once_is_not_blamed(tmp_path):
    target = Target("slot_pool", "builds", BuildsAtFirst)
    done = campaign(target, tmp_path / "slow", shards=2, jobs=1)
    assert not done.findings
    campaign(Target("slot_pool", "builds", SlotPool), tmp_path / "quick", shards=2, jobs=1)
    require_equal(tmp_path / "slow", tmp_path / "quick")
