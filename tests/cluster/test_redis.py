"""Campaigns that are kept on a Redis server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from campaigns import campaign, sums, traces

pytest.importorskip("redis", reason="redis is not installed; make cluster installs it")

from redis import Redis

from kvlockstep.campaign.ledger import KNOWN_EXAMPLE
from kvlockstep.campaign.redis_store import RedisStore
from kvlockstep.core.errors import UsageError
from kvlockstep.targets import resolve

FAULT = "fault:pool-occupy-toggles"


@pytest.fixture
def url(redis_server, request):
    """A campaign of its own for each test."""
    return f"{redis_server}#{request.node.name}"


def test_it_is_what_a_directory_keeps(url, tmp_path):
    target = resolve("slot_pool", FAULT)
    campaign(target, tmp_path / "directory", shards=12)
    store = RedisStore(url, tmp_path / "redis")
    campaign(target, None, store=store, shards=12)
    assert sums(store) == sums(tmp_path / "directory")
    assert traces(tmp_path / "redis") == traces(tmp_path / "directory")


def test_another_machine_goes_on_with_it(url, tmp_path):
    target = resolve("slot_pool", FAULT)
    campaign(target, tmp_path / "directory", shards=12)
    campaign(target, None, store=RedisStore(url, tmp_path / "first"), shards=5)
    store = RedisStore(url, tmp_path / "second")
    done = campaign(target, None, store=store, shards=12)
    assert len(done.ledger.done) == 12
    assert sums(store) == sums(tmp_path / "directory")
    assert traces(tmp_path / "second").keys() >= {f"findings/{name}" for name in done.findings}


def test_checkpoints_take_the_place_of_the_journal(url, redis_server, tmp_path, monkeypatch):
    monkeypatch.setattr("kvlockstep.campaign.redis_store.CHECKPOINT_BYTES", 2_000)
    target = resolve("slot_pool", FAULT)
    campaign(target, tmp_path / "directory", shards=30)
    store = RedisStore(url, tmp_path / "redis")
    campaign(target, None, store=store, shards=30)
    prefix = f"kvlockstep:{url.partition('#')[2]}:"
    assert Redis.from_url(redis_server).exists(prefix + "checkpoint")
    assert sums(store) == sums(tmp_path / "directory")


def test_only_one_runs_it(url, tmp_path):
    target = resolve("slot_pool", "reference")
    with RedisStore(url, tmp_path / "first").lock(), pytest.raises(UsageError, match="is running"):
        campaign(target, None, store=RedisStore(url, tmp_path / "second"), shards=1)


def test_a_run_that_lost_the_lock_adds_nothing(url, redis_server, tmp_path):
    store = RedisStore(url, tmp_path)

    def take_over(_state):
        Redis.from_url(redis_server).set(f"kvlockstep:{url.partition('#')[2]}:lock", "another")

    with pytest.raises(UsageError, match="another run has taken over"):
        campaign(resolve("slot_pool", "reference"), None, store=store, progress=take_over)


def test_a_server_that_goes_away(tmp_path):
    with pytest.raises(UsageError, match=r"the Redis server of redis://127\.0\.0\.1:1/0 cannot be used"):
        campaign(resolve("slot_pool", "reference"), None, store=RedisStore("redis://127.0.0.1:1/0", tmp_path))


def test_status_while_it_runs_and_after_the_run_is_killed(url, tmp_path, run_cli):
    command = [sys.executable, "-m", "kvlockstep", "fuzz", "slot_pool", "--target", FAULT, "--time", "60"]
    process = subprocess.Popen([*command, "--store", url, "--dir", str(tmp_path / "d")], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    steps = 0
    while not steps and time.monotonic() < deadline:
        code, out, _ = run_cli("status", url, "--json")
        steps = json.loads(out)["steps"] if code == 0 else 0
        time.sleep(0.1)
    assert json.loads(out)["running"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    code, out, _ = run_cli("status", url)
    assert code == 0
    assert "VIOLATED" in out


def test_hypothesis_keeps_failing_examples_there_for_the_next_campaign(url, redis_server, tmp_path):
    server = Redis.from_url(redis_server)
    before = set(server.keys("hypothesis-example:*"))
    target = resolve("slot_pool", FAULT)
    done = campaign(target, None, store=RedisStore(url, tmp_path / "first"), driver="hypothesis", shards=2)
    assert done.findings
    assert set(server.keys("hypothesis-example:*")) - before
    assert KNOWN_EXAMPLE not in {episode for episode, _ in done.ledger.findings.values()}
    store = RedisStore(url + "-next", tmp_path / "next")
    following = campaign(target, None, store=store, driver="hypothesis", seed=1, shards=2)
    assert KNOWN_EXAMPLE in {episode for episode, _ in following.ledger.findings.values()}
