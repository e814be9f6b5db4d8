"""Goals of kv_store: events that a run must meet before it says anything."""

from __future__ import annotations

from collections import Counter

from kvlockstep.models.core.model import Goal
from kvlockstep.properties.kv_store import SPECIAL_BITS, Held, View, pairs_of
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.kv_store.contract import PAD_SLOT, StoreTraits

GOALS = (
    Goal("overwritten", "a slot is written again"),
    Goal("one_layer", "a write touches one of several layers"),
    Goal("padding", "a write has padding among its slots"),
    Goal("all_padding", "a write has nothing but padding"),
    Goal("nothing", "nothing is written, copied or gathered"),
    Goal("special_bits", "NaNs and negative zeros are written"),
    Goal("special_copied", "NaNs and negative zeros are copied"),
    Goal("gathered_twice", "a slot is gathered twice in one call"),
    Goal("copy", "a block with content is copied"),
    Goal("run", "neighbouring blocks are copied to neighbouring blocks"),
    Goal("scattered", "blocks that are not neighbours are copied"),
    Goal("one_to_many", "one block is copied to several"),
    Goal("onto_itself", "a block is copied onto itself"),
    Goal("chain", "a block is the target of one copy and the source of another"),
    Goal("cycle", "blocks change places"),
    Goal("prefix", "a copied prefix ends at a block boundary"),
    Goal("prefix_tail", "a copied prefix ends in the middle of a block that has content behind it in the target"),
    Goal("prefix_nothing", "a prefix of no tokens is copied"),
    Goal("prefix_longer_table", "a copied prefix is shorter than its tables"),
    Goal("prefix_overlap", "a block is in both tables of a prefix copy at different places"),
    Goal("swap_out", "blocks with content are swapped out"),
    Goal("swap_in", "blocks with content are swapped in"),
    Goal("round_trip", "a block is swapped in after its device block was overwritten"),
    Goal("swap_many", "several blocks are swapped at once"),
    Goal("host_reuse", "a host block with content is overwritten"),
    Goal("repeated_target", "a target is named twice"),
    Goal("unknown_place", "a call names a slot or block that does not exist"),
    Goal("unknown_layer", "a call names a layer that does not exist"),
    Goal("bad_row", "a row has the wrong length or an element that is too wide"),
    Goal("short_table", "a table is too short for its prefix"),
    Goal("row", "a slot with content is copied alone", when="copies_rows"),
    Goal("rows_chain", "a slot is the target of one copy and the source of another", when="copies_rows"),
    Goal("scales_read", "the scales of a slot with content are read", when="quantises"),
    Goal("scales_copied", "a slot is copied onto one with other scales", when="quantises"),
    Goal("budget_exact", "a budget is a multiple of a block's bytes"),
    Goal("budget_one_less", "a budget is one byte short of another block"),
    Goal("budget_negative", "a budget is negative"),
)

# The goals that only this copy meets.
BY_COPY = {
    "copy_blocks": ("copy", "run", "scattered", "one_to_many", "onto_itself", "chain", "cycle"),
    "copy_prefix": (
        *("prefix", "prefix_tail", "prefix_nothing", "prefix_longer_table", "prefix_overlap", "short_table"),
    ),
    "swap_out": ("swap_out", "host_reuse"),
    "swap_in": ("swap_in", "round_trip"),
}
OVERLAPPING = ("onto_itself", "chain", "cycle", "prefix_overlap", "rows_chain")


def unreachable(traits: StoreTraits) -> set[str]:
    """The goals that a target with these traits cannot meet."""
    copies = traits.copies.split()
    missing = {goal.id for goal in GOALS if goal.when is not None and not getattr(traits, goal.when)}
    missing |= {goal for copy, goals in BY_COPY.items() if copy not in copies for goal in goals}
    missing |= {"special_copied"} if not copies else set()
    missing |= {"swap_many"} if not {"swap_out", "swap_in"} & {*copies} else set()
    missing |= {*OVERLAPPING} if traits.apart else set()
    missing |= {"swap_in", "round_trip"} if "swap_out" not in copies else set()
    return missing | ({"special_bits", "special_copied"} if traits.quantises else set())


def notice(met: Counter[str], step: Step[View, Held]) -> None:
    """Counts what has happened in this step."""
    op, held = step.op, step.held
    if isinstance(step.outcome, Refused):
        _notice_refusal(met, step)
        return
    match op.name:
        case "write":
            _notice_write(met, step)
        case "scales" | "scales_host":
            planes = step.before.host if op.name == "scales_host" else step.before.device
            met["scales_read"] += any(any(planes[op.args["layer"]][0][slot]) for slot in op.args["slots"])
        case "gather" | "gather_host":
            slots = op.args["slots"]
            met["gathered_twice"] += len(set(slots)) < len(slots)
            met["nothing"] += not slots
        case "blocks_within":
            block_bytes = held.block_size * held.shape.token_bytes
            rest = op.args["budget"] % block_bytes
            met["budget_exact"] += rest == 0 < op.args["budget"]
            met["budget_one_less"] += rest == block_bytes - 1
        case _:
            _notice_copy(met, step)


def _notice_refusal(met: Counter[str], step: Step[View, Held]) -> None:
    args = step.op.args
    targets = args["slots"] if step.op.name == "write" else args.get("target", [t for _, t in args.get("pairs", ())])
    met["unknown_place"] += step.outcome.error == "UnknownSlot"
    met["unknown_layer"] += not 0 <= (args.get("layer") or 0) < step.held.shape.layers
    met["repeated_target"] += len(set(targets)) < len(targets)
    met["bad_row"] += min(args.get("stamps", ()), default=0) < 0
    needed = -(-args.get("tokens", 0) // step.held.block_size)
    met["short_table"] += step.op.name == "copy_prefix" and needed > len(args["source"])
    met["budget_negative"] += args.get("budget", 0) < 0


def _notice_write(met: Counter[str], step: Step[View, Held]) -> None:
    args = step.op.args
    real = [slot for slot in args["slots"] if slot != PAD_SLOT]
    met["nothing"] += not args["slots"]
    met["padding"] += 0 < len(real) < len(args["slots"])
    met["all_padding"] += not real and bool(args["slots"])
    met["one_layer"] += args["layer"] is not None and step.held.shape.layers > 1
    met["special_bits"] += not step.held.shape.given and any(stamp % 3 == 0 for stamp in args["stamps"])
    met["overwritten"] += any(any(step.before.device[-1][0][slot]) for slot in real)


def _notice_copy(met: Counter[str], step: Step[View, Held]) -> None:
    op = step.op
    places = pairs_of(step)
    moved = [(s, t) for s, t in places if s != t]
    content = any(any(getattr(step.before, side)[-1][0][slot]) for (side, slot), _ in moved)
    met["nothing"] += not places
    if op.name == "copy_prefix":
        _notice_prefix(met, step, content)
        return
    if step.held.shape.given:
        planes = {side: getattr(step.before, side)[-1][2] for side in ("device", "host")}
        met["scales_copied"] += any(planes[a][s] != planes[b][t] for (a, s), (b, t) in moved)
    if op.name == "copy_rows":
        sources, targets = {s for s, _ in moved}, {t for _, t in moved}
        met["row"] += content
        met["rows_chain"] += content and bool(sources & targets)
        return
    special = SPECIAL_BITS[step.held.shape.dtype][:3]
    met["special_copied"] += not step.held.shape.given and any(
        bits in special for (side, slot), _ in moved for bits in getattr(step.before, side)[-1][0][slot]
    )
    if op.name != "copy_blocks":
        met[op.name] += content
        met["swap_many"] += len(op.args["pairs"]) > 1
        full = any(any(step.before.host[-1][0][slot]) for _, (_, slot) in places if op.name == "swap_out")
        met["host_reuse"] += full
        met["round_trip"] += op.name == "swap_in" and content and step.before.device != step.after.device
        return
    pairs = op.args["pairs"]
    sources, targets = {s for s, t in pairs if s != t}, {t for s, t in pairs if s != t}
    met["copy"] += content
    met["run"] += any((s + 1, t + 1) in pairs for s, t in pairs if s != t)
    met["scattered"] += len(sources) > 1 and not any((s + 1, t + 1) in pairs for s, t in pairs)
    met["one_to_many"] += len(sources) < sum(s != t for s, t in pairs)
    met["onto_itself"] += any(s == t for s, t in pairs)
    met["chain"] += content and bool(sources & targets) and sources != targets
    met["cycle"] += content and len(sources) > 1 and sources == targets


def _notice_prefix(met: Counter[str], step: Step[View, Held], content: bool) -> None:
    args, size = step.op.args, step.held.block_size
    needed = -(-args["tokens"] // size)
    source, target = args["source"][:needed], args["target"][:needed]
    met["prefix_nothing"] += args["tokens"] == 0
    met["prefix"] += content and args["tokens"] % size == 0
    met["prefix_longer_table"] += 0 < needed < len(args["source"])
    met["prefix_overlap"] += content and any(s in target and s != t for s, t in zip(source, target, strict=True))
    if args["tokens"] % size:
        met["prefix_tail"] += content and any(step.before.device[-1][0][target[-1] * size + size - 1])
