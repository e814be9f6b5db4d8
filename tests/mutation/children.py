"""Forked children with a time limit, and the copies of the tree that they work in."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from killing import Killed, Look, enter, look_at

FOLDERS = ("reference", "properties", "impl", "models")
# A look that takes this long is compared with the time that the original takes.
PATIENCE = 20.0


@dataclass(frozen=True)
class Tree:
    """A copy of the files, and beside it the package as links into the copy."""

    root: Path

    @property
    def files(self) -> Path:
        return self.root / "tree"

    @property
    def package(self) -> Path:
        return self.root / "path"

    def write(self, file: str, source: str) -> None:
        """Replaces a file; what was compiled of it goes."""
        path = self.files / file
        path.write_text(source, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def tracked(source: Path) -> list[str]:
    """The files that git knows of, or would take in."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=source, capture_output=True, check=True).stdout.decode().split("\0")
    return [name for name in listed if name and (source / name).is_file()]


def copy_of(source: Path, names: list[str], root: Path) -> Tree:
    """Copies the files of these names."""
    tree = Tree(root)
    for name in names:
        (tree.files / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, tree.files / name)
    package = tree.package / "kvlockstep"
    package.mkdir(parents=True)
    for folder in FOLDERS:
        (package / folder).symlink_to(tree.files / folder)
        compileall.compile_dir(tree.files / folder, quiet=2)
    for path in (tree.files / "harness").iterdir():
        (package / path.name).symlink_to(path)
    compileall.compile_dir(package, quiet=2, maxlevels=0)
    return tree


@dataclass(frozen=True)
class Verdict:
    """What noticed a mutant, and which look at the original must not; `what` is empty for a survivor."""

    what: str
    look: Look | None = None
    seconds: float = 0.0


def call(work: Callable[[], Any]) -> Any:
    """The answer of `work`, which must be JSON, from a child of its own."""
    with _child(lambda say: say(work())) as lines:
        return next(lines(None))


def judge(tree: Tree, looks: list[Look], limit_of: Callable[[Look], float]) -> Verdict:
    """Runs the looks in a child until one of them notices something, or takes longer than `limit_of` it."""

    def work(say: Callable[[Any], None]) -> None:
        enter(tree.files, tree.package)
        for look in looks:
            say(look)
            look_at(look)
        say(None)

    started = time.monotonic()
    look: Look = looks[0]
    with _child(work) as lines:
        while True:
            try:
                said = _within(lines, PATIENCE)
                if said is TimeoutError:
                    said = _within(lines, limit_of(look) - PATIENCE)
            except EOFError:
                return Verdict(f"{' '.join(look)}: the process died", look, time.monotonic() - started)
            if said is TimeoutError:
                return Verdict(f"{' '.join(look)}: takes too long", look, time.monotonic() - started)
            if said is None:
                return Verdict("", None, time.monotonic() - started)
            if isinstance(said, dict):
                return Verdict(said["what"], tuple(said["look"]), time.monotonic() - started)
            look = tuple(said)


def _within(lines: Callable[[float | None], Iterator[Any]], seconds: float) -> Any:
    return next(lines(max(seconds, 0.0)))


@contextlib.contextmanager
def _child(work: Callable[[Callable[[Any], None]], None]) -> Iterator[Any]:
    """A child in a process group of its own, which ends with the block; it says JSON lines."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _serve(work, writing)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)
    os.close(writing)
    rest = b""

    def lines(seconds: float | None) -> Iterator[Any]:
        nonlocal rest
        while b"\n" not in rest:
            if not select.select([reading], [], [], seconds)[0]:
                yield TimeoutError
                return
            read = os.read(reading, 1 << 16)
            if not read:
                raise EOFError
            rest += read
        line, rest = rest.split(b"\n", 1)
        yield json.loads(line)

    try:
        yield lines
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.close(reading)
        os.waitpid(pid, 0)


def _serve(work: Callable[[Callable[[Any], None]], None], writing: int) -> None:
    def say(what: Any) -> None:
        os.write(writing, json.dumps(what).encode() + b"\n")

    try:
        os.setpgid(0, 0)
        work(say)
    except Killed as killed:
        say({"what": str(killed), "look": killed.look})
    finally:
        os._exit(0)
