"""A campaign on a Redis server, so that it outlives the machine that runs it.

How much of it survives a crash of the server is up to the server: `appendonly yes` with `appendfsync always` keeps all.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvlockstep.campaign.damage import checked_ledger, checked_plan, checked_record, read_from
from kvlockstep.campaign.ledger import Ledger, Record, line_of
from kvlockstep.campaign.plan import Plan
from kvlockstep.campaign.store import CHECKPOINT_BYTES, FORMAT, DirectoryStore, Saved
from kvlockstep.core.errors import UsageError
from kvlockstep.core.files import write_whole
from kvlockstep.core.trace import Trace, trace_text

try:
    import redis
except ImportError as error:
    raise UsageError("--store redis:// needs the package redis: pip install 'kvlockstep[cluster]'") from error

LOCK_SECONDS = 60
DEFAULT_NAME = "campaign"
# Only who holds the lock adds to a journal; a run that was held up for too long must not.
APPEND = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('expire', KEYS[1], ARGV[2])
for i = 3, #ARGV do redis.call('rpush', KEYS[2], ARGV[i]) end
return 1
"""
UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"


class RedisStore:
    """The campaign NAME of redis://HOST:PORT/DB#NAME; its traces are put into `directory` as well, to be replayed."""

    way_out = "start another one with another #NAME at the end of --store"

    def __init__(self, url: str, directory: Path) -> None:
        self.place = url
        self._server, _, name = url.partition("#")
        self._prefix = f"kvlockstep:{name or DEFAULT_NAME}:"
        self._local = DirectoryStore(directory)
        self._token = uuid.uuid4().hex
        self._size = 0
        try:
            self._redis = redis.Redis.from_url(self._server)
        except ValueError as error:
            raise UsageError(f"--store {url}: {error}") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        with self._complaining():
            taken = self._redis.set(self._key("lock"), self._token, nx=True, ex=LOCK_SECONDS)
        if not taken:
            raise UsageError(
                f"the campaign in {self.place} is running, or was killed less than {LOCK_SECONDS} s ago; "
                f"see `kvlockstep status {self.place}`"
            )
        try:
            yield
        finally:
            with self._complaining():
                self._redis.eval(UNLOCK, 1, self._key("lock"), self._token)

    def running(self) -> bool:
        with self._complaining():
            return bool(self._redis.exists(self._key("lock")))

    def load(self) -> Saved | None:
        with self._complaining(), self._redis.pipeline(transaction=True) as pipe:
            pipe.get(self._key("plan")).get(self._key("checkpoint")).lrange(self._key("journal"), 0, -1)
            plan, checkpoint, journal = pipe.execute()
        if plan is None:
            return None
        with read_from(f"{self.place}: {self._key('plan')}", self.way_out):
            plan = checked_plan(json.loads(plan), FORMAT)
        with read_from(f"{self.place}: {self._key('checkpoint')}", self.way_out):
            ledger = Ledger.from_json(checked_ledger(json.loads(checkpoint))) if checkpoint else Ledger()
        for number, line in enumerate(journal, 1):
            with read_from(f"{self.place}: {self._key('journal')}:{number}", self.way_out):
                ledger.apply(checked_record(json.loads(line)))
        self._size = sum(map(len, journal))
        return Saved(plan, ledger)

    def begin(self, plan: Plan) -> None:
        with self._complaining():
            self._redis.set(self._key("plan"), json.dumps({"format": FORMAT, **plan.to_json()}))

    def append(self, records: list[Record], ledger: Ledger) -> None:
        lines = [line_of(record) for record in records]
        keys = self._key("lock"), self._key("journal")
        with self._complaining():
            if not self._redis.eval(APPEND, len(keys), *keys, self._token, LOCK_SECONDS, *lines):
                raise UsageError(f"another run has taken over the campaign in {self.place}; this one ends")
            self._size += sum(map(len, lines))
            if self._size > CHECKPOINT_BYTES:
                with self._redis.pipeline(transaction=True) as pipe:
                    pipe.set(self._key("checkpoint"), json.dumps(ledger.to_json())).delete(self._key("journal"))
                    pipe.execute()
                self._size = 0

    def put_trace(self, folder: str, name: str, trace: Trace) -> Path:
        with self._complaining():
            self._redis.hset(self._key(folder), name, trace_text(trace))
        return self._local.put_trace(folder, name, trace)

    def find_trace(self, folder: str, name: str) -> Path:
        path = self._local.find_trace(folder, name)
        with self._complaining():
            text = self._redis.hget(self._key(folder), name)
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.decode())
        return path

    def drop_trace(self, folder: str, name: str) -> None:
        with self._complaining():
            self._redis.hdel(self._key(folder), name)
        self._local.drop_trace(folder, name)

    def put_status(self, status: dict[str, Any]) -> None:
        with self._complaining():
            self._redis.set(self._key("status"), json.dumps(status))

    def database(self) -> str:
        return self._server

    def _key(self, name: str) -> str:
        return self._prefix + name

    @contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except redis.exceptions.RedisError as error:
            raise UsageError(
                f"the Redis server of {self.place} cannot be used: {error}; everything found so far is kept there: "
                "give the same command again to resume"
            ) from error
