"""Output of `score`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kvlockstep.drivers import CHECK_DRIVERS
from kvlockstep.runs.fault_scores import FaultScore, Score
from kvlockstep.runs.results import HOLDS


def print_score(console: Console, result: Score) -> None:
    """Faults by driver, the matrix from the side of the laws, known-good targets, and what fails the gate."""
    if result.faults:
        console.print(_fault_table(result.faults))
        console.print(_law_table(result))
    if result.clean:
        console.print(_clean_table(result))
    for fault in result.missed:
        found = [s.seed for s in fault.sightings if s.law]
        how = f"caught by luck, with seeds {found} only" if fault.by_luck else "MISSED"
        console.print(f"{fault.id}: {how}; {fault.expected} was expected", markup=False)
    for fault in result.too_long:
        console.print(f"{fault.id}: its shortest trace has {len(fault.trace.ops) if fault.trace else 0} operations")
    for law in result.blind:
        console.print(f"{law.contract} {law.id}: no fault shows it, and properties/overlaps.py does not say why")
    console.print(_summary(result), markup=False)


def _fault_table(faults: list[FaultScore]) -> Table:
    table = Table(title="steps to detection", title_justify="left", box=None, pad_edge=False)
    table.add_column("fault", no_wrap=True)
    table.add_column("law", no_wrap=True)
    for driver in CHECK_DRIVERS:
        table.add_column(driver, justify="right", no_wrap=True)
    for column in ("seeds", "trace", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for fault in faults:
        steps = [f"{s.steps:,}" if (s := fault.caught_by(driver)) else "-" for driver in CHECK_DRIVERS]
        caught = sum(map(fault.caught_with, fault.seeds))
        length = str(len(fault.trace.ops)) if fault.trace else "-"
        law = fault.laws[0] if fault.laws else "-"
        table.add_row(fault.id, law, *steps, f"{caught}/{len(fault.seeds)}", length, f"{fault.seconds:.1f}")
    return table


def _law_table(result: Score) -> Table:
    title = "law x fault: reported by it, seen by it, seen by no other law of the contract"
    table = Table("contract", "law", title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("reports", "sees", "alone"):
        table.add_column(column, justify="right")
    table.add_column("for example, or why not")
    for law in result.laws():
        also = law.reason or (f"with {', '.join(law.company)}" if law.company else "" if law.sees else "-")
        counts = (str(law.first), str(law.sees), str(len(law.alone)))
        table.add_row(law.contract, law.id, *counts, law.alone[0] if law.alone else also)
    return table


def _clean_table(result: Score) -> Table:
    table = Table("known-good target", "verdict", title_justify="left", box=None, pad_edge=False)
    table.add_column("steps", justify="right")
    table.add_column("seconds", justify="right")
    for clean in result.clean:
        why = f" {clean.law}" if clean.law else f": missed goals {', '.join(clean.missed)}" if clean.missed else ""
        name = f"{clean.contract} on {clean.target}"
        table.add_row(name, f"{clean.verdict.upper()}{why}", f"{clean.steps:,}", f"{clean.seconds:.1f}")
    return table


def _summary(result: Score) -> str:
    caught, total = len(result.faults) - len(result.missed), len(result.faults)
    parts = []
    if total:
        parts.append(f"{caught} of {total} faults caught")
    if total and result.thorough:
        longest = max(result.lengths, default=0)
        parts[-1] += f", shortest traces: median {result.median_length:g}, longest {longest} operations"
    if result.clean:
        false = sum(clean.verdict != HOLDS for clean in result.clean)
        parts.append(f"{len(result.clean)} known-good targets, {false} false alarms")
    return f"{result.verdict.upper()}: {'; '.join(parts)}; {result.seconds:.0f} seconds"
