"""Hypothesis's own database of failing examples, on a disk or on a Redis server."""

from __future__ import annotations

from typing import Any


def example_database(name: str) -> Any:
    """The database of this directory or redis:// URL; none for an empty name."""
    if name.startswith(("redis://", "rediss://", "unix://")):
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415
        from redis import Redis  # noqa: PLC0415

        return RedisExampleDatabase(Redis.from_url(name))
    if name:
        from hypothesis.database import DirectoryBasedExampleDatabase  # noqa: PLC0415

        return DirectoryBasedExampleDatabase(name)
    return None
