"""The checklist "Add a contract" of CONTRIBUTING.md, walked in a copy of the tree: these files, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvlockstep

ROOMS = ("reference", "properties", "models", "impl")

NEW = {
    "reference/ticket_roll.py": '''
        """A roll of numbered tickets: the contract, and a reference that is obviously right."""

        from __future__ import annotations

        from typing import Protocol

        from kvlockstep.reference.errors import OutOfSlots


        class TicketRollTarget(Protocol):
            """Factory `make(tickets)`."""

            def take(self) -> int:
                """The next number, from 0. Raises OutOfSlots when the roll is empty."""

            def left(self) -> int:
                """Tickets that are left. Changes nothing."""


        class TicketRoll:
            def __init__(self, tickets: int) -> None:
                self._tickets, self._taken = tickets, 0

            def take(self) -> int:
                if not self.left():
                    raise OutOfSlots("no ticket is left")
                self._taken += 1
                return self._taken - 1

            def left(self) -> int:
                return self._tickets - self._taken
    ''',
    "properties/ticket_roll.py": '''
        """Laws of ticket_roll, and the view that they look at."""

        from __future__ import annotations

        from typing import NamedTuple

        from kvlockstep.properties.law import EVERYWHERE, Step, law, laws_of


        class View(NamedTuple):
            left: int


        @law("ticket_roll")
        def no_ticket_twice(step: Step) -> str | None:
            """No number is given twice."""
            return f"{step.outcome} was given before" if step.outcome in step.held_before else None


        LAWS = (*laws_of(globals()), *EVERYWHERE)
    ''',
    "models/ticket_roll.py": '''
        """What can happen to a ticket_roll."""

        from __future__ import annotations

        from dataclasses import dataclass
        from typing import Any

        from kvlockstep.models.core.lockstep import LockstepModel
        from kvlockstep.models.core.model import Goal, Scope
        from kvlockstep.models.core.op import Op, Pick, command
        from kvlockstep.properties.law import Refused, Step
        from kvlockstep.properties.ticket_roll import LAWS, View
        from kvlockstep.reference.ticket_roll import TicketRoll


        @dataclass(frozen=True)
        class TicketRollScope(Scope):
            tickets: int


        class TicketRollModel(LockstepModel[TicketRollScope]):
            contract = "ticket_roll"
            laws = LAWS
            reference_type = TicketRoll
            scope_type = TicketRollScope
            operations = {"take": {}}
            scopes = tuple(map(TicketRollScope, (1, 2, 3)))
            small_scopes = tuple(map(TicketRollScope, (0, 1, 2)))
            goals = (Goal("empty", "a ticket is asked for when none is left"),)

            def factory_arguments(self, scope: TicketRollScope) -> dict[str, Any]:
                return scope.to_json()

            @command(1)
            def take(self, pick: Pick) -> Op:
                return Op("take")

            def perform(self, system: Any, op: Op) -> Any:
                return system.take()

            def observe(self, system: Any) -> View:
                return View(system.left())

            def nothing_held(self) -> frozenset[int]:
                return frozenset()

            def holds_after(self, held: frozenset[int], op: Op, outcome: Any) -> frozenset[int]:
                return held if isinstance(outcome, Refused) else held | {outcome}

            def notice(self, step: Step) -> None:
                self.goals_met["empty"] += isinstance(step.outcome, Refused)

            def fingerprint(self) -> Any:
                return self.view
    ''',
    "impl/ticket_roll.py": '''
        """A roll of tickets as an iterator."""

        from __future__ import annotations

        from kvlockstep.reference.errors import OutOfSlots


        class IteratorRoll:
            def __init__(self, tickets: int) -> None:
                self._left = iter(range(tickets))

            def take(self) -> int:
                for ticket in self._left:
                    return ticket
                raise OutOfSlots("no ticket is left")

            def left(self) -> int:
                return self._left.__length_hint__()


        class StuckRoll(IteratorRoll):
            def take(self) -> int:
                return 0 * super().take()
    ''',
}
ENTRIES = {
    "reference/catalogue.py": (
        "CONTRACTS = {\n    contract.name: contract\n    for contract in (\n",
        """        Contract(
            "ticket_roll",
            "A roll of numbered tickets.",
            TicketRollTarget,
            {"tickets": 4},
            "kvlockstep.reference.ticket_roll:TicketRoll",
        ),
""",
        "from kvlockstep.reference.ticket_roll import TicketRollTarget\n",
    ),
    "impl/__init__.py": (
        "TARGETS = {\n",
        '    "ticket_roll": {"iterator": "kvlockstep.impl.ticket_roll:IteratorRoll"},\n',
        "",
    ),
    "properties/why.py": ("WHY = {\n", '    "no_ticket_twice": "Two customers stand at one counter.",\n', ""),
}
WALK = """
import contextlib, io, json, sys
from pathlib import Path
from kvlockstep import machines
from kvlockstep.commands.cli import main
from kvlockstep.impl import ticket_roll

def run(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main(list(arguments))
        except SystemExit as stop:
            return stop.code or 0, out.getvalue()
    return 0, out.getvalue()

def failures():
    return map(str, Path(".kvlockstep/failures").iterdir())

machines.TicketRollMachine.target = ticket_roll.IteratorRoll
machines.TicketRollMachine.TestCase("runTest").debug()
commands = {
    "list": ["list", "--json"],
    "explain": ["explain", "ticket_roll"],
    "law": ["explain", "no_ticket_twice"],
    "check": ["check", "ticket_roll", "--target", "iterator"],
    "stuck": ["check", "ticket_roll", "--target", "kvlockstep.impl.ticket_roll:StuckRoll"],
    "new": ["new-target", "mine", "--contract", "ticket_roll"],
}
found = {name: run(*words) for name, words in commands.items()}
print(json.dumps({"place": ticket_roll.__file__, **found, "replayed": run("replay", "--trust", *failures())}))
"""


def dedented(text: str) -> str:
    return "\n".join(line.removeprefix("        ") for line in text.strip("\n").splitlines()).rstrip() + "\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree by links, with the new files and entries in it."""
    package = tmp_path / "tree" / "kvlockstep"
    package.mkdir(parents=True)
    for file in Path(kvlockstep.__file__).parent.iterdir():
        if file.name not in ROOMS:
            (package / file.name).symlink_to(file)
    for room in ROOMS:
        (package / room).mkdir()
        (home,) = __import__(f"kvlockstep.{room}", fromlist=["x"]).__path__
        for file in Path(home).iterdir():
            (package / room / file.name).symlink_to(file)
    for name, text in NEW.items():
        (package / name).write_text(dedented(text))
    for name, (before, entry, imported) in ENTRIES.items():
        text = (package / name).read_text()
        assert text.count(before) == 1, name
        (package / name).unlink()
        (package / name).write_text(text.replace(before, before + entry).replace("\n\nSHAPE", f"\n{imported}\nSHAPE"))
    return package.parent


def test_a_contract_is_registered_once(tree: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    walk = [sys.executable, "-c", WALK]
    done = subprocess.run(walk, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["place"] == str(tree / "kvlockstep/impl/ticket_roll.py")
    listed = json.loads(found["list"][1])["ticket_roll"]
    assert list(listed["targets"]) == ["reference", "iterator"]
    assert next(iter(listed["laws"])) == "no_ticket_twice"
    assert "contract ticket_roll: A roll of numbered tickets." in found["explain"][1]
    assert "Why it matters: Two customers stand" in found["law"][1]
    assert "stated in properties/ticket_roll.py:1" in found["law"][1]
    assert found["check"][0] == 0, found["check"][1]
    assert found["stuck"][0] == 1
    assert "VIOLATED no_ticket_twice" in found["stuck"][1]
    assert found["replayed"][0] == 1
    assert "VIOLATED no_ticket_twice" in found["replayed"][1]
    assert found["new"][0] == 0
    assert "def take(self) -> int:" in (tmp_path / "mine.py").read_text()
    assert len(NEW) + len(ENTRIES) == 7
