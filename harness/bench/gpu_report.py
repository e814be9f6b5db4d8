"""`python -m kvlockstep.bench.gpu_report [FILE [PART ...]]`: the GPU side on this card, with its ceilings."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import triton

from kvlockstep.bench.gpu_figures import figures
from kvlockstep.bench.gpu_sanitizers import sanitized
from kvlockstep.core.errors import UsageError
from kvlockstep.core.markdown import table_head, table_row
from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.drivers.run import Run
from kvlockstep.impl.faulty.kv_store._narrow_offsets import NarrowOffsets
from kvlockstep.impl.kv_store.far_apart import FarStore
from kvlockstep.models.core.model import Factory
from kvlockstep.models.registry import model_of
from kvlockstep.targets.registry import OWN_TARGETS, on_device, resolve

MACHINE_STEPS = 100_000
MACHINE_SECONDS = 200
FAR_STEPS = 3_000
FAR_BYTES = 8 * ((1 << 32) + (1 << 30))
SANITIZERS_SAY = """\
The table has the errors that each tool finds in code with planted errors, and in the kernels' tests. racecheck looks
at shared memory. The sanitizer of torch looks at torch's own operations on streams, not at Triton's launches.
"""


def machines() -> Iterator[tuple[str, str, Factory, int]]:
    """Targets that run on the device: contract, name, factory and steps. The last is a store of over 2**32 words."""
    for contract, targets in OWN_TARGETS.items():
        for name in targets:
            if name == "reference":
                continue
            try:
                target = on_device(resolve(contract, name), "cuda")
            except UsageError:  # it keeps nothing on a device
                continue
            yield contract, target.name, target.factory, MACHINE_STEPS
    far = partial(FarStore, least_bytes=FAR_BYTES, device="cuda")
    yield "kv_store", f"far apart in {FAR_BYTES >> 30} GiB", far, FAR_STEPS
    narrow = partial(NarrowOffsets, bits=32, least_bytes=FAR_BYTES, device="cuda")
    yield "kv_store", "the same, planted: offsets in 32 bits", narrow, FAR_STEPS


def sanitizers() -> Iterator[str]:
    """Lines of the table of sanitizers."""
    yield SANITIZERS_SAY
    yield from table_head("tool", "planted errors found", "tests passed", "errors in them")
    for tool in sanitized():
        yield table_row(*tool)


def machine_runs() -> Iterator[str]:
    """Lines of the table of machines."""
    runs = list(machines())
    held = {contract for contract, *_ in runs}
    bare = [contract for contract in OWN_TARGETS if contract not in held]
    yield f"Random episodes in lockstep with the reference.\n{', '.join(bare)} keep nothing on a device."
    yield ""
    yield from table_head("machine", "target", "steps", "steps/s", "verdict")
    for contract, name, factory, steps in runs:
        with Watchdog(60.0).watching() as watchdog:
            budget = Profile("gpu", random_steps=steps)
            done = RandomWalk(MACHINE_SECONDS).run(Run(model_of(contract), factory, budget, watchdog, seed=11))
        verdict = f"violates {done.failure.law}" if done.failure else "holds"
        yield table_row(contract, name, f"{done.steps:,}", f"{done.steps / done.seconds:,.0f}", verdict)


PARTS = {"Figures": figures, "Sanitizers": sanitizers, "Machines": machine_runs}


def report(old: str, name: str) -> Iterator[str]:
    """Yields the page after every line of this part, which is written again; the other parts stay as they are."""
    parts = dict.fromkeys(PARTS, "") | {part.partition("\n")[0]: part.strip() for part in old.split("\n## ")[1:]}
    card, today = torch.cuda.get_device_name(), datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [name, "", f"{today}: {card}, torch {torch.__version__}, Triton {triton.__version__}.", ""]
    for line in PARTS[name]():
        lines.append(line)
        parts[name] = "\n".join(lines)
        print(line, flush=True)
        yield "# On a GPU\n\nWritten by `make gpu`.\n" + "".join(f"\n## {part}\n" for part in parts.values() if part)


def main() -> None:
    """Writes the page to the file named, docs/gpu.md if none is; only the parts named, if any are."""
    if not torch.cuda.is_available():
        sys.exit("kvlockstep.bench.gpu_report: no CUDA device")
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/gpu.md")
    names = sys.argv[2:] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"kvlockstep.bench.gpu_report: no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for name in names:
        for page in report(path.read_text() if path.exists() else "", name):
            path.write_text(page)
        print(f"{name} written to {path}")


if __name__ == "__main__":
    main()
