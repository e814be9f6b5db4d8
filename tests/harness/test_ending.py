"""The process of the command line ends with its exit code, whatever threads a target leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from kvlockstep import __main__ as ending

POOL = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.reference.slot_pool import SlotPool

def stays(slots):
    if threading.active_count() == 1:
        threading.Thread(target=time.sleep, args=(1000,), name="stays-on").start()
    return SlotPool(slots)

def stays_broken(slots):
    stays(slots)
    return FAULTS["pool-occupy-toggles"].make(slots)

def after_main(then):
    threading.main_thread().join()
    print("late")
    time.sleep(then)

def prints_late(slots):
    if threading.active_count() == 1:
        threading.Thread(target=after_main, args=(1000,), name="late").start()
    return SlotPool(slots)

def ends_late(slots):
    if threading.active_count() == 1:
        threading.Thread(target=after_main, args=(0.2,)).start()
        atexit.register(lambda: (time.sleep(1), print("tidied up")))
    return SlotPool(slots)

EXECUTOR = ThreadPoolExecutor(2)
def idle(slots):
    EXECUTOR.submit(len, "").result()
    return SlotPool(slots)

def busy(slots):
    if not EXECUTOR._threads:
        EXECUTOR.submit(time.sleep, 1000)
    return SlotPool(slots)
"""
CUT_OFF = "kvlockstep: threads of the target were still running and are cut off: "


def run(folder, target, *more):
    """The command in a process, with little patience; answers it, and how long it took after its results."""
    (folder / "leaving.py").write_text(POOL)
    program = "from kvlockstep import __main__ as m; m.WAIT_SECONDS = 0.5; m.run()"
    command = [sys.executable, "-c", program, "check", "slot_pool", "--in-process"]
    command += ["--driver", "random", "--target", target, *more]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, cwd=folder, env=buffered, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("factory", "code"), [("stays", 0), ("stays_broken", 1)])
def test_a_thread_that_stays_is_cut_off(tmp_path, factory, code):
    done = run(tmp_path, f"leaving:{factory}", "--junit", "junit.xml")
    assert done.returncode == code
    assert done.stderr == f"{CUT_OFF}stays-on\n"
    assert done.stdout.rstrip().splitlines()[-1].startswith(("HOLDS: 1 target,", "VIOLATED: 1 target,"))
    assert (tmp_path / "junit.xml").read_text().rstrip().endswith("</testsuites>")


def test_results_in_a_buffer_are_written(tmp_path):
    done = run(tmp_path, "leaving:stays", "--json")
    assert json.loads(done.stdout)["verdict"] == "holds"
    assert CUT_OFF in done.stderr


def test_what_a_thread_prints_until_then_is_written(tmp_path):
    done = run(tmp_path, "leaving:prints_late")
    assert done.stdout.endswith("late\n")
    assert done.stderr == f"{CUT_OFF}late\n"


def test_a_thread_that_ends_in_time_lets_all_else_end(tmp_path):
    done = run(tmp_path, "leaving:ends_late")
    assert done.stdout.endswith("late\ntidied up\n")
    assert not done.stderr


def test_a_thread_that_is_busy_in_an_executor(tmp_path):
    done = run(tmp_path, "leaving:busy")
    assert done.returncode == 0
    assert f"{CUT_OFF}ThreadPoolExecutor-0_0\n" in done.stderr


def test_an_idle_executor_ends_by_itself(tmp_path):
    done = run(tmp_path, "leaving:idle")
    assert done.returncode == 0
    assert not done.stderr


def test_a_usage_error_with_a_thread_left(tmp_path):
    (tmp_path / "leaving_import.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), name='early').start()\n1 / 0\n"
    )
    done = run(tmp_path, "leaving_import:make")
    assert done.returncode == 2
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.endswith(f"{CUT_OFF}early\n")


def test_a_module_and_a_script_end_alike(tmp_path):
    done = subprocess.run([sys.executable, "-m", "kvlockstep", "list"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "kv_manager" in done.stdout


def test_the_command_line_in_a_process_of_others_ends_nothing(run_cli, monkeypatch):
    monkeypatch.setattr(ending, "WAIT_SECONDS", 0.0)
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    code, _, err = run_cli("list")
    time.sleep(0.1)
    release.set()
    thread.join()
    assert code == 0
    assert not err
