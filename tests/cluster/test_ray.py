"""Campaigns on a Ray cluster of two nodes find what campaigns on one machine find."""

from __future__ import annotations

from functools import partial

import pytest
from campaigns import campaign, sums, traces

pytest.importorskip("ray", reason="ray is not installed; make cluster installs it")
pytest.importorskip("redis", reason="redis is not installed; make cluster installs it")

from kvlockstep.campaign.ray_workers import RayWorkers, ray_workers
from kvlockstep.campaign.redis_store import RedisStore
from kvlockstep.core.capture import output_shown
from kvlockstep.core.errors import UsageError
from kvlockstep.targets import resolve

FAULT = "slot_prefix_cache", "fault:prefix-evicts-interior"
SHARDS = 12


def on_ray(target, directory, cluster, **changes):
    engine = partial(ray_workers, address=cluster.address)
    return campaign(target, directory, **{"make_workers": engine, "shards": SHARDS, "jobs": None, **changes})


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The directory of the campaign on one machine."""
    directory = tmp_path_factory.mktemp("here")
    assert campaign(resolve(*FAULT), directory, shards=SHARDS).findings
    return directory


def test_the_same_findings_as_here(cluster, here, tmp_path):
    there = on_ray(resolve(*FAULT), tmp_path, cluster)
    assert there.jobs == 2
    assert traces(tmp_path) == traces(here)
    assert sums(tmp_path) == sums(here)


def test_what_a_target_prints_there_is_captured_or_shown(cluster, tmp_path, monkeypatch, capfd):
    (tmp_path / "loud.py").write_text(
        "from kvlockstep.reference.slot_pool import SlotPool\n\n"
        "class Loud(SlotPool):\n"
        "    def occupy(self, slot):\n"
        "        print('occupying', slot)\n"
        "        raise RuntimeError('broken')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    target = resolve("slot_pool", "loud:Loud")
    done = on_ray(target, tmp_path / "captured", cluster, shards=1)
    (trace, _), *_ = done.findings.values()
    assert [line.split()[0] for line in trace.printed] == ["occupying"]
    assert "occupying" not in capfd.readouterr().out
    with output_shown():
        on_ray(target, tmp_path / "shown", cluster, shards=1)
    assert "occupying" in capfd.readouterr().out


def test_a_target_that_kills_its_process_there(cluster, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n"
        "from kvlockstep.reference.slot_pool import SlotPool\n\n"
        "class Dies(SlotPool):\n"
        "    def occupy(self, slot):\n"
        "        super().occupy(slot)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    target = resolve("slot_pool", "deadly:Dies")
    done = on_ray(target, tmp_path / "there", cluster, shards=2)
    (trace, _), *_ = done.findings.values()
    assert "SIGKILL" in trace.message
    assert [op.name for op in trace.ops] == ["occupy"]
    campaign(target, tmp_path / "here", shards=2)
    assert traces(tmp_path / "there") == traces(tmp_path / "here")


def test_a_store_that_all_share(cluster, redis_server, tmp_path):
    url = f"{redis_server}#shared"
    target = resolve("slot_pool", "fault:pool-occupy-toggles")
    here = campaign(target, tmp_path / "here", shards=SHARDS)
    store = RedisStore(url, tmp_path / "there")
    on_ray(target, None, cluster, store=store)
    assert here.findings
    assert traces(tmp_path / "there") == traces(tmp_path / "here")
    assert sums(store) == sums(tmp_path / "here")


def test_no_such_cluster(tmp_path):
    target = resolve("slot_pool", "reference")
    with pytest.raises(UsageError, match=r"cannot join the Ray cluster at 127\.0\.0\.1:1"):
        campaign(target, tmp_path, make_workers=partial(ray_workers, address="127.0.0.1:1"))


class OneNodeIsLost(RayWorkers):
    """Two workers, one on each node. The second node goes away as soon as both are at work."""

    cluster = None
    at_work = 0

    def submit(self, task):
        super().submit(task)
        self.at_work += 1
        if self.at_work == 2 and (cluster := self.cluster):
            self.cluster = None
            cluster.remove_node(cluster.second, allow_graceful=False)

    def collect(self, seconds):
        done = super().collect(seconds)
        self.at_work -= len(done)
        return done


def test_a_node_that_goes_away(cluster, here, tmp_path):
    made = []

    def workers(target, plan, jobs, database):
        made.append(OneNodeIsLost(target, plan, jobs, "", cluster.address))
        made[0].cluster = cluster
        return made[0]

    lossy = campaign(resolve(*FAULT), tmp_path, make_workers=workers, shards=SHARDS, jobs=2)
    assert made[0].cluster is None, "no node went away"
    assert traces(tmp_path) == traces(here)
    assert sums(tmp_path) == sums(here)
    assert any("it is done again" in text for text in lossy.lost_workers)
