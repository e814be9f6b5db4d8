"""Stores that keep a campaign: a directory here, a Redis server in campaign.redis_store."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kvlockstep.campaign.damage import checked_ledger, checked_plan, checked_record, read_from
from kvlockstep.campaign.ledger import Ledger, Record, line_of
from kvlockstep.campaign.plan import Plan
from kvlockstep.core.errors import UsageError
from kvlockstep.core.files import Journal, require_writable, whole_lines, write_whole
from kvlockstep.core.system import module_or_none
from kvlockstep.core.trace import Trace, load_trace, trace_text
from kvlockstep.models.core.trace_schema import require_kind

# The last begins with a dot so that nothing takes it for failing.
FINDINGS, CORPUS, FIXED = "findings", "corpus", ".fixed"
PLAN, CHECKPOINT, STATUS, LOCK = "campaign.json", "checkpoint.json", "status.json", "lock"
CHECKPOINT_BYTES = 4_000_000
LOCK_SECONDS = 2.0
FORMAT = 2

fcntl = module_or_none("fcntl")


class Saved(NamedTuple):
    """Content of a store: the plan as it was written, and the state."""

    plan: dict[str, Any]
    ledger: Ledger


class Store(Protocol):
    """Keeps one campaign. A method returns when its arguments are kept.

    Raises UsageError if the store cannot be written or read; everything kept before stays.
    """

    place: str
    way_out: str

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keeps others from running the same campaign. Raises UsageError if another does."""

    def running(self) -> bool:
        """True if a run holds the lock."""

    def load(self) -> Saved | None:
        """The campaign, None if there is none. Raises UsageError if it is damaged."""

    def begin(self, plan: Plan) -> None:
        """Starts a campaign."""

    def append(self, records: list[Record], ledger: Ledger) -> None:
        """Adds records; `ledger` is the state with them."""

    def put_trace(self, folder: str, name: str, trace: Trace) -> Path:
        """Keeps a trace and returns its file on this machine."""

    def find_trace(self, folder: str, name: str) -> Path:
        """The file on this machine of a trace that was put before."""

    def drop_trace(self, folder: str, name: str) -> None:
        """Forgets a trace, if it is there."""

    def put_status(self, status: dict[str, Any]) -> None:
        """Writes the status that others may read while the campaign runs."""

    def database(self) -> str:
        """Names the Hypothesis example database that workers can make with `example_database`."""


def _locked(handle: int) -> bool:
    """Takes the lock; waits a little, for workers of a run that was killed hold it until they are gone too."""
    deadline = time.monotonic() + LOCK_SECONDS
    if fcntl is None:
        return True
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


class DirectoryStore:
    """A campaign as a directory.

    campaign.json is the plan; checkpoint.json the state at some time, and the number of the journal with all that came
    after it. findings/ and corpus/ hold traces. `findings` puts those elsewhere.
    """

    way_out = "start another one with another --dir"

    def __init__(self, directory: Path, findings: Path | None = None) -> None:
        self.directory = directory
        self.place = str(directory)
        self._folders = {
            FINDINGS: findings or directory / FINDINGS,
            CORPUS: directory / CORPUS,
            FIXED: directory / FIXED,
        }
        self._journal: Journal | None = None
        self._number = 0

    @contextmanager
    def lock(self) -> Iterator[None]:
        require_writable(self.directory)
        with self._complaining():
            file = (self.directory / LOCK).open("w")
        with file:
            if not _locked(file.fileno()):
                raise UsageError(
                    f"the campaign in {self.directory} is running; see `kvlockstep status {self.directory}`"
                )
            try:
                yield
            finally:
                if self._journal is not None:
                    self._journal.close()
                    self._journal = None

    def running(self) -> bool:
        with (
            read_from(str(self.directory / LOCK), self.way_out),
            contextlib.suppress(FileNotFoundError),
            (self.directory / LOCK).open() as file,
        ):
            if fcntl is None:
                return False
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def load(self) -> Saved | None:
        path = self.directory / PLAN
        if not os.path.lexists(path):
            return None
        with read_from(str(path), self.way_out):
            plan = checked_plan(json.loads(path.read_text(encoding="utf-8")), FORMAT)
        return Saved(plan, self._load_ledger())

    def begin(self, plan: Plan) -> None:
        with self._complaining():
            write_whole(self.directory / PLAN, json.dumps({"format": FORMAT, **plan.to_json()}, indent=1) + "\n")

    def append(self, records: list[Record], ledger: Ledger) -> None:
        with self._complaining():
            if self._journal is None:
                self._journal = self._open_journal()
            self._journal.append("".join(line_of(record) + "\n" for record in records))
            if self._journal.size > CHECKPOINT_BYTES:
                self._checkpoint(ledger)

    def put_trace(self, folder: str, name: str, trace: Trace) -> Path:
        path = self._folders[folder] / name
        with self._complaining():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, trace_text(trace))
        return path

    def find_trace(self, folder: str, name: str) -> Path:
        return self._folders[folder] / name

    def drop_trace(self, folder: str, name: str) -> None:
        with self._complaining():
            (self._folders[folder] / name).unlink(missing_ok=True)

    def put_status(self, status: dict[str, Any]) -> None:
        with self._complaining():
            write_whole(self.directory / STATUS, json.dumps(status) + "\n", durable=False)

    def database(self) -> str:
        return str((self.directory / "examples").resolve())

    def _load_ledger(self) -> Ledger:
        """Reads again if the journal was replaced meanwhile, which a running campaign does."""
        while True:
            self._number, ledger = self._load_checkpoint()
            path = self._journal_path(self._number)
            data = b""
            with read_from(str(path), self.way_out), contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
            if self._load_checkpoint()[0] == self._number:
                break
        for number, line in enumerate(whole_lines(data).splitlines(), 1):
            with read_from(f"{path}:{number}", self.way_out):
                ledger.apply(checked_record(json.loads(line)))
        return ledger

    def _load_checkpoint(self) -> tuple[int, Ledger]:
        path = self.directory / CHECKPOINT
        if not os.path.lexists(path):
            return 0, Ledger()
        with read_from(str(path), self.way_out):
            checkpoint = json.loads(path.read_text(encoding="utf-8"))
            require_kind("the checkpoint", checkpoint, dict)
            require_kind("journal", checkpoint.get("journal"), int)
            return checkpoint["journal"], Ledger.from_json(checked_ledger(checkpoint.get("ledger")))

    def _checkpoint(self, ledger: Ledger) -> None:
        assert self._journal is not None
        text = json.dumps({"journal": self._number + 1, "ledger": ledger.to_json()})
        write_whole(self.directory / CHECKPOINT, text)
        self._number += 1
        former, self._journal = self._journal, None
        former.close()
        self._journal = self._open_journal()

    def _open_journal(self) -> Journal:
        current = self._journal_path(self._number)
        for path in self.directory.glob("journal.*"):
            if path != current:
                path.unlink()
        return Journal(current)

    def _journal_path(self, number: int) -> Path:
        return self.directory / f"journal.{number}"

    @contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"cannot write to {error.filename or self.directory}: {os.strerror(error.errno or 0)}; everything "
                "found so far is kept: free some space and give the same command again to resume"
            ) from error


def finding_in(store: Store, name: str, contract: str) -> tuple[Trace, Path]:
    """A finding of a store with its file. Raises UsageError if that is damaged or gone."""
    path = store.find_trace(FINDINGS, name)
    try:
        return load_trace(path, contract), path
    except UsageError as error:
        raise UsageError(f"{error}; restore it, or {store.way_out}") from error
