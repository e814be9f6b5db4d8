"""The kernels' tests under the sanitizers of CUDA and of torch, each tried on an error first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TESTS = "tests/contracts/test_kv_kernels.py"
QUICK = "odd_sizes or stamps_say or one_wrong_bit or acquire"
SECONDS = 150
PROLOGUE = """
import torch
from kvlockstep.impl.kernels import Rows, stamp_fill, stamp_verify
slots = torch.tensor([1, 9], device="cuda")
"""
BEHIND_THE_END = """
words = torch.zeros(64, dtype=torch.int64, device="cuda")
stamp_fill(Rows(words, 0, 32, 8, 8), 1, slots, slots)
torch.cuda.synchronize()
"""
NEVER_WRITTEN = """
words = torch.empty(4096, dtype=torch.int64, device="cuda")
print(stamp_verify(Rows(words, 0, 2048, 8, 8), 1, slots, slots).tolist())
"""
TWO_STREAMS = """
numbers = torch.rand(10_000, device="cuda")
with torch.cuda.stream(torch.cuda.Stream()):
    torch.mul(numbers, 5, out=numbers)
"""
PLANTED = {"memcheck": BEHIND_THE_END, "initcheck": NEVER_WRITTEN, "racecheck": "", "synccheck": ""}
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:errors?|hazards?)")
PASSED = re.compile(r"(\d+) passed")


class Sanitized(NamedTuple):
    """Report of a tool: the planted errors it found, the tests that passed under it, and the errors in them."""

    tool: str
    planted: str
    passed: str
    errors: str


def sanitized() -> Iterator[Sanitized]:
    """Every tool in turn; one that is not there, or finds no tests in this directory, says so."""
    if not Path(TESTS).exists():
        yield Sanitized("all", "", f"no {TESTS} here", "")
        return
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS, "-k", QUICK]
    command = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # else the tool sees one big allocation
    for tool, planted in PLANTED.items():
        name = f"compute-sanitizer, {tool}"
        if command is None:
            yield Sanitized(name, "", "not installed", "")
            continue
        prefix = [command, "--tool", tool]
        found = "none planted"
        if planted:
            found = _found(SUMMARY, _output([*prefix, *_python(planted)], environment))
        output = _output([*prefix, *tests], environment)
        yield Sanitized(name, found, _found(PASSED, output), _found(SUMMARY, output))
    environment = os.environ | {"TORCH_CUDA_SANITIZER": "1"}
    found = str(_output(_python(TWO_STREAMS), environment).count("CSAN detected"))
    output = _output(tests, environment)
    yield Sanitized("torch.cuda._sanitizer", found, _found(PASSED, output), str(output.count("CSAN detected")))


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", PROLOGUE + code]


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {SECONDS} s"
    return done.stdout + done.stderr


def _found(pattern: re.Pattern[str], output: str) -> str:
    """The number that a tool gives, or its last line if it gives none."""
    numbers = pattern.findall(output)
    return numbers[-1] if numbers else (output.strip().splitlines() or ["nothing said"])[-1][:80]
