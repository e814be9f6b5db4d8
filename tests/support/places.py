"""Where the repository keeps what tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DATA = ROOT / "tests" / "data"
FAULT_TRACES = DATA / "faults"
"""The shortest trace of each fault, by contract; `kvlockstep score --traces` writes them."""
