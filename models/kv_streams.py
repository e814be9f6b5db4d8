"""Model of kv_streams: work on four streams, any of which may be held up at any time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Goal, Scope, simpler_args
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command, sample
from kvlockstep.models.core.operations import MOVES
from kvlockstep.models.core.picture import CALLER, FREE, HELD, UNKNOWN, Cell, Picture, Table, numbers
from kvlockstep.models.core.whole import wholes
from kvlockstep.properties.kv_streams import LAWS, Held, View, moved
from kvlockstep.properties.law import Operation, Refused, Step
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv_streams import KVStreams
from kvlockstep.reference.kv_streams.contract import MOST_STAMPS, STREAMS

MOST_PAIRS = 3


@dataclass(frozen=True)
class KVStreamsScope(Scope):
    """`exhaustive`: few choices, each of them, and no more than so many calls from one synchronize to the next."""

    blocks: int
    host_blocks: int
    exhaustive: int = 0

    def shown(self) -> dict[str, Any]:
        return {"blocks": self.blocks, "host_blocks": self.host_blocks}


class KVStreamsModel(LockstepModel[KVStreamsScope]):
    contract = "kv_streams"
    laws = LAWS
    reference_type = KVStreams
    scope_type = KVStreamsScope
    operations = {
        "alloc": {},
        "free": {"block": int},
        "write": {"block": int, "stamp": int},
        "read": {"block": int},
        "copy": MOVES,
        "swap_out": MOVES,
        "swap_in": MOVES,
        "hold": {"stream": str},
        "let_go": {"stream": str},
        "synchronize": {},
    }
    scopes = tuple(KVStreamsScope(*sizes) for sizes in ((1, 1), (2, 1), (3, 2), (4, 2), (6, 3), (3, 0)))
    small_scopes = (KVStreamsScope(1, 1, exhaustive=3), KVStreamsScope(2, 1, exhaustive=2))
    goals = (
        Goal("behind_a_gate", "work is given to a stream that is held up"),
        Goal("read_after_write", "a read follows a held-up copy or swap into its block"),
        Goal("write_after_read", "a write follows held-up work that still reads its block"),
        Goal("write_after_write", "a write follows held-up work that also writes its block"),
        Goal("host_order", "a host block is swapped in while it is being swapped out"),
        Goal("reused_in_flight", "a block is handed out while its last user is held up"),
        Goal("overtaking", "work on another stream runs past a gate"),
        Goal("two_gates", "two streams are held up at once"),
        Goal("many_pairs", "several blocks are copied or swapped in one call"),
        Goal("let_go", "a gate is opened with work behind it"),
        Goal("synchronized", "synchronize returns reads"),
        Goal("out_of_blocks", "no block is free"),
        Goal("out_of_reads", "more reads wait than synchronize can return"),
        Goal("not_held", "a free block is used"),
        Goal("unknown", "a block that does not exist is used"),
        Goal("malformed", "an argument is out of range, or a target is repeated"),
    )

    def __init__(self, scope: KVStreamsScope, factory: Any) -> None:
        super().__init__(scope, factory)
        self._users: dict[tuple[str, int], set[tuple[str, str]]] = {}

    def factory_arguments(self, scope: KVStreamsScope) -> dict[str, Any]:
        return {"blocks": scope.blocks, "host_blocks": scope.host_blocks}

    @command(4)
    def alloc(self, pick: Pick) -> Op:
        """A block is handed out."""
        return self._call("alloc")

    @command(2)
    def free(self, pick: Pick) -> Op:
        """A block is given back, whatever is in flight."""
        return self._call("free", block=self._held_block(pick))

    @command(6)
    def write(self, pick: Pick) -> Op:
        """Attention writes a block."""
        stamps = (1, 2) if self.scope.exhaustive else range(1, MOST_STAMPS)
        return self._call("write", block=self._held_block(pick), stamp=pick(stamps))

    @command(6)
    def read(self, pick: Pick) -> Op:
        """Attention reads a block."""
        return self._call("read", block=self._held_block(pick))

    @command(3)
    def copy(self, pick: Pick) -> Op:
        """Blocks are copied on the device."""
        blocks = sorted(self.held.blocks)
        count = min(self._count(pick), len(blocks) // 2)
        if not count:
            raise NotEnabled
        targets = sample(pick, blocks, count)
        sources = [block for block in blocks if block not in targets]
        return self._call("copy", pairs=[(pick(sources), target) for target in targets])

    @command(4)
    def swap_out(self, pick: Pick) -> Op:
        """Blocks go to the host."""
        targets = sample(pick, range(self.scope.host_blocks), self._count(pick))
        return self._call("swap_out", pairs=[(self._held_block(pick), target) for target in targets])

    @command(4)
    def swap_in(self, pick: Pick) -> Op:
        """Blocks come from the host."""
        if not self.scope.host_blocks:
            raise NotEnabled
        targets = sample(pick, sorted(self.held.blocks), self._count(pick))
        return self._call("swap_in", pairs=[(pick(range(self.scope.host_blocks)), target) for target in targets])

    @command(4)
    def hold(self, pick: Pick) -> Op:
        """A stream is held up from here on."""
        return self._call("hold", stream=pick([s for s in STREAMS if s not in self.held.gates]))

    @command(2)
    def let_go(self, pick: Pick) -> Op:
        """A stream is let go."""
        return self._call("let_go", stream=pick(sorted(self.held.gates)))

    @command(4)
    def synchronize(self, pick: Pick) -> Op:
        """Everything is waited for."""
        return Op("synchronize")

    @command(1)
    def malformed(self, pick: Pick) -> Op:
        """A block is free or not there, a stream held twice, a target named twice."""
        blocks, held = self.scope.blocks, sorted(self.held.blocks)[:1]
        free, gates = self.view.free[:1], sorted(self.held.gates)[:1]
        unused = [stream for stream in STREAMS if stream not in gates][:1]
        return pick(
            [
                Op("free", block=blocks),
                Op("write", block=-1, stamp=1),
                Op("hold", stream="other"),
                Op("swap_in", pairs=[(self.scope.host_blocks, block) for block in held]),
                *(Op("free", block=block) for block in free),
                *(Op("read", block=block) for block in free),
                *(Op("swap_in", pairs=[(0, block)]) for block in free),
                *(Op("write", block=block, stamp=MOST_STAMPS) for block in held),
                *(Op("copy", pairs=[(block, block)]) for block in held),
                *(Op("swap_out", pairs=[(block, 0), (block, 0)]) for block in held),
                *(Op("hold", stream=stream) for stream in gates),
                *(Op("let_go", stream=stream) for stream in unused if stream not in self.held.gates),
            ]
        )

    def perform(self, system: Any, op: Op) -> Any:
        args = dict(op.args)
        if "pairs" in args:
            args["pairs"] = [(source, target) for source, target in args["pairs"]]
        answer = getattr(system, op.name)(**args)
        return wholes(answer) if op.name == "synchronize" else answer

    def observe(self, system: Any) -> View:
        return View(wholes(system.free_blocks()), wholes(system.memory()))

    def draw(self, view: View) -> Picture:
        held: Held = self.held
        cells = {}
        for block, stamp in enumerate(view.memory):
            state = HELD if block in held.blocks else FREE if block in view.free else UNKNOWN
            holders = (CALLER,) if block in held.blocks else ()
            cells[block] = Cell(state, holders, len(holders), f"stamp {stamp}")
        rows = (
            ("free", numbers(view.free)),
            ("streams held up", ", ".join(sorted(held.gates)) or "-"),
            ("asked for since the last synchronize", "; ".join(held.pending) or "-"),
            ("host", numbers(held.host)),
        )
        return Picture("block", cells, (Table("streams", ("what", "value"), rows),))

    def nothing_held(self) -> Held:
        scope = self.scope
        return Held(frozenset(), (0,) * scope.blocks, (0,) * scope.host_blocks, (), frozenset(), (), scope.blocks)

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        args = op.args
        held = held._replace(pending=(*held.pending, str(op)))
        match op.name:
            case "alloc":
                return held._replace(blocks=held.blocks | {outcome})
            case "free":
                return held._replace(blocks=held.blocks - {args["block"]})
            case "write":
                device = list(held.device)
                device[args["block"]] = args["stamp"]
                return held._replace(device=tuple(device))
            case "read":
                return held._replace(reads=(*held.reads, held.device[args["block"]]))
            case "copy":
                return held._replace(device=moved(held.device, held.device, args["pairs"]))
            case "swap_out":
                return held._replace(host=moved(held.device, held.host, args["pairs"]))
            case "swap_in":
                return held._replace(device=moved(held.host, held.device, args["pairs"]))
            case "hold":
                return held._replace(gates=held.gates | {args["stream"]})
            case "let_go":
                return held._replace(gates=held.gates - {args["stream"]})
        return held._replace(gates=frozenset(), reads=(), pending=())

    def notice(self, step: Step[View, Held]) -> None:
        met, op = self.goals_met, step.op
        match step.outcome:
            case Refused("OutOfSlots"):
                met["out_of_blocks" if op.name == "alloc" else "out_of_reads"] += 1
            case Refused("NotHeld"):
                met["not_held"] += 1
            case Refused("UnknownSlot"):
                met["unknown"] += 1
            case Refused(InvalidArgument.__name__):
                met["malformed"] += 1
            case _ if op.name == "synchronize":
                met["synchronized"] += bool(step.outcome)
                self._users.clear()
            case _ if op.name == "alloc":
                users = self._users.get(("device", step.outcome), ())
                met["reused_in_flight"] += any(stream in step.held.gates for stream, _ in users)
            case _ if op.name == "hold":
                met["two_gates"] += len(step.held.gates) > 1
            case _ if op.name == "let_go":
                stream = op.args["stream"]
                met["let_go"] += any((stream, how) in users for users in self._users.values() for how in "rw")
            case _ if op.name != "free":
                self._notice_work(step)

    def _notice_work(self, step: Step[View, Held]) -> None:
        met, gates = self.goals_met, step.held.gates
        stream, reads, writes = places_of(step.op)
        met["behind_a_gate"] += stream in gates
        met["overtaking"] += bool(gates) and stream not in gates
        met["many_pairs"] += len(writes) > 1
        for place, how in [(place, "r") for place in reads] + [(place, "w") for place in writes]:
            for other, before in self._users.get(place, ()):
                if other != stream and other in gates and "w" in (how, before):
                    met[
                        {"rw": "read_after_write", "wr": "write_after_read", "ww": "write_after_write"}[how + before]
                    ] += 1
                    met["host_order"] += place[0] == "host"
        for place, how in [(place, "r") for place in reads] + [(place, "w") for place in writes]:
            self._users.setdefault(place, set()).add((stream, how))

    def fingerprint(self) -> Any:
        return tuple(self.view.free), tuple(self.view.memory), self.held

    @classmethod
    def simpler_scopes(cls, scope: KVStreamsScope) -> Iterable[Scope]:
        for blocks in range(1, scope.blocks):
            yield replace(scope, blocks=blocks)
        for host_blocks in range(scope.host_blocks):
            yield replace(scope, host_blocks=host_blocks)

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        return (op for op in simpler_args(op) if all(len(pair) == 2 for pair in op.args.get("pairs", ())))

    def _call(self, name: str, **arguments: Any) -> Op:
        if self.scope.exhaustive and len(self.held.pending) >= self.scope.exhaustive:
            raise NotEnabled
        return Op(name, **arguments)

    def _held_block(self, pick: Pick) -> int:
        block: int = pick(sorted(self.held.blocks))
        return block

    def _count(self, pick: Pick) -> int:
        return 1 if self.scope.exhaustive else pick((1, 1, 2, MOST_PAIRS))


def places_of(op: Operation) -> tuple[str, list[tuple[str, int]], list[tuple[str, int]]]:
    """The stream of an operation, and the places that it reads and writes."""
    args = op.args
    if op.name in ("read", "write"):
        place = [("device", args["block"])]
        return "compute", place if op.name == "read" else [], place if op.name == "write" else []
    stream, origin, goal = {
        "copy": ("copy", "device", "device"),
        "swap_out": ("out", "device", "host"),
        "swap_in": ("in", "host", "device"),
    }[op.name]
    return stream, [(origin, s) for s, _ in args["pairs"]], [(goal, t) for _, t in args["pairs"]]
