"""Goals of kv_write: what must happen before a run says anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvlockstep.models.core.model import Goal
from kvlockstep.properties.kv_write.laws import Write
from kvlockstep.properties.kv_write.rows import KINDS, NARROW, ONE_SIGNED, kind_of, outlier_at
from kvlockstep.reference.kv_write.contract import PAD_SLOT, WriteTraits
from kvlockstep.reference.kv_write.geometry import LAYOUTS

GOALS = (
    *(Goal(f"layout_{layout}", f"several tokens are written in layout {layout}") for layout in LAYOUTS),
    Goal("several_blocks", "a call writes to several blocks"),
    Goal("last_slot", "the last slot of a layer is written"),
    Goal("all_slots", "a call writes all slots of a layer"),
    Goal("nothing", "a call has no row"),
    Goal("overwritten", "a slot is written again"),
    Goal("one_layer", "a write is to one of several layers"),
    Goal("gap", "tokens have free elements between them"),
    Goal("padding", "a call has rows and padding", when="pads"),
    Goal("all_padding", "a call has nothing but padding", when="pads"),
    Goal("repeated", "a slot comes twice in a call", when="repeats"),
    Goal("own_dims", "V has another head dim than K", when="own_dims"),
    Goal("own_strides", "V has other strides than K", when="own_strides"),
    Goal("gathered", "a written slot is read", when="can_gather"),
    Goal("gathered_twice", "a slot is read twice in a call", when="can_gather"),
    Goal("special_bits", "NaNs and negative zeros are written"),
    *(Goal(f"row_{kind}", f"a row is quantised that is {kind}") for kind in KINDS),
    Goal(
        "outlier_everywhere", "a row is quantised whose outlier is its first element, and one whose outlier is its last"
    ),
)


def unreachable(traits: WriteTraits) -> set[str]:
    """The goals that need a layout or a trait that the target has not, or that it quantises, or does not."""
    quantised = {f"row_{kind}" for kind in KINDS} | {"outlier_everywhere"}
    missing = {f"layout_{layout}" for layout in LAYOUTS if layout not in traits.layouts.split()}
    missing |= {goal.id for goal in GOALS if goal.when is not None and not getattr(traits, goal.when)}
    missing |= {f"row_{kind}" for kind in kinds_left_out(traits)}
    return missing | (quantised if traits.scale == "none" else {"special_bits"})


def kinds_left_out(traits: WriteTraits) -> set[str]:
    """The kinds of rows that are not written to a target with these traits."""
    return set(() if traits.narrow_rows else NARROW).union(() if traits.one_signed else ONE_SIGNED)


def notice_write(met: Counter[str], write: Write, stamps: Sequence[int], written: set[tuple[int, int]]) -> None:
    """Counts what has happened in this write. `written`: the (layer, slot) pairs of the writes before."""
    geometry, real = write.geometry, [slot for slot in write.slots if slot != PAD_SLOT]
    kinds = [kind_of(stamp) for slot, stamp in zip(write.slots, stamps, strict=True) if slot != PAD_SLOT]
    met[f"layout_{geometry.layout}"] += len(set(real)) > 1
    met["several_blocks"] += len({slot // geometry.block_size for slot in real}) > 1
    met["last_slot"] += geometry.slots - 1 in real
    met["all_slots"] += len(set(real)) == geometry.slots
    met["nothing"] += not write.slots
    met["overwritten"] += any((write.layer, slot) in written for slot in real)
    met["one_layer"] += geometry.layers > 1 and bool(real)
    met["gap"] += geometry.key_gap > 0 and bool(real)
    met["padding"] += 0 < len(real) < len(write.slots)
    met["all_padding"] += not real and bool(write.slots)
    met["repeated"] += len(set(real)) < len(real)
    met["own_dims"] += geometry.key_dim != geometry.value_dim and bool(real)
    met["own_strides"] += geometry.key_gap != geometry.value_gap and bool(real)
    if geometry.scale == "none":
        met["special_bits"] += any(stamp % 3 == 0 for stamp in stamps)
        return
    met.update(f"row_{kind}" for kind in kinds)
    seeds = [stamp // len(KINDS) for stamp in stamps if kind_of(stamp) == "outlier"]
    outliers = {outlier_at(seed, 0, 0, geometry.key_dim) for seed in seeds}
    met["outlier_first"] += 0 in outliers
    met["outlier_last"] += geometry.key_dim - 1 in outliers
    met["outlier_everywhere"] = met["outlier_first"] and met["outlier_last"]
