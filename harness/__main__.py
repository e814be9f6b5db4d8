"""The process of the command line: `kvlockstep`, and `python -m kvlockstep`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import NoReturn

if sys.flags.optimize > 1:
    print("kvlockstep: python -OO drops docstrings, and the laws have their statements there: use -O", file=sys.stderr)
    sys.exit(2)

from kvlockstep.commands.cli import main
from kvlockstep.commands.options import IN_PROCESS
from kvlockstep.core.parent import waited_for
from kvlockstep.core.system import CAN_FORK

# For threads that a target has left to end when the command is through; those of an idle executor do at once.
WAIT_SECONDS = 5.0


def run() -> None:
    """Runs the command, in a child where that is possible, and ends the process with its exit code."""
    if not CAN_FORK or IN_PROCESS in sys.argv:
        _end(_command())
    parent = os.getpid()
    code = waited_for(_command)
    if os.getpid() == parent:
        sys.exit(code)
    _end(code)


def _command() -> int:
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code


def _end(code: int) -> NoReturn:
    """Ends this process, also if a target has left threads that do not end."""
    if _left():
        threading.Thread(target=_end_soon, args=(code,), name="kvlockstep-end", daemon=True).start()
    sys.exit(code)


def _left() -> list[threading.Thread]:
    """The threads that Python waits for at its end."""
    return [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]


def _end_soon(code: int) -> None:
    """Runs beside Python's own end, and cuts it short."""
    time.sleep(WAIT_SECONDS)
    if not (left := _left()):
        return
    names = ", ".join(thread.name for thread in left)
    text = f"kvlockstep: threads of the target were still running and are cut off: {names}"
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            if stream is not None:
                stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
