"""Laws of kv_write, over one write: the whole flat buffer before and after it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from kvlockstep.properties.kv_write.quantised import code_error, decoded_error, scale_error
from kvlockstep.properties.kv_write.rows import Row
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, law, laws_of
from kvlockstep.reference.kv_write.contract import PAD_SLOT, WriteTraits
from kvlockstep.reference.kv_write.geometry import SCALES, Geometry
from kvlockstep.reference.kv_write.layout import layout_of, places_of
from kvlockstep.reference.kv_write.numbers import CODE_BITS, ELEMENT_BYTES, of_bytes

PLANES = "KV"


class Buffers(NamedTuple):
    """The bytes of the flat buffer, and of that of the scales."""

    memory: bytes
    scales: bytes


class Write(NamedTuple):
    """One write, and the buffers of the target before and after it. Row i of `keys` and `values` is for slots[i]."""

    geometry: Geometry
    traits: WriteTraits
    layer: int
    slots: Sequence[int]
    keys: Sequence[Row]
    values: Sequence[Row]
    before: Buffers
    after: Buffers

    def rows(self) -> Iterator[tuple[int, int, Row]]:
        """(plane, slot, row) of each row that is not padding."""
        for plane, rows in enumerate((self.keys, self.values)):
            for slot, row in zip(self.slots, rows, strict=True):
                if slot != PAD_SLOT:
                    yield plane, slot, row

    def heads(self) -> Iterator[tuple[int, int, int, Row]]:
        """(plane, slot, head, elements) of each row of a head in a slot that is written once."""
        twice = self.repeated()
        for plane, slot, row in self.rows():
            dim = self.geometry.dim(plane)
            for head in range(self.geometry.heads if slot not in twice else 0):
                yield plane, slot, head, row[head * dim : (head + 1) * dim]

    def codes(self) -> Iterator[tuple[int, int, int, Row]]:
        """As `heads`, those of them that are kept as codes."""
        for found in self.heads():
            if self.geometry.scale_of(found[0]) != "none":
                yield found

    def repeated(self) -> set[int]:
        """The slots that come more than once."""
        return {slot for slot, n in Counter(self.slots).items() if n > 1 and slot != PAD_SLOT}

    def places(self, plane: int, slot: int, head: int) -> list[int]:
        """The places of the elements of a row of a head in the flat buffer."""
        return _places(self.geometry, self.layer, plane, slot, head)

    def kept(self, plane: int, slot: int, head: int) -> Row:
        """The patterns of a row of a head after the write."""
        width, memory, kept = self.geometry.width, self.after.memory, self.geometry.kept_of(plane)
        found = [int.from_bytes(memory[p * width : (p + 1) * width], "little") for p in self.places(plane, slot, head)]
        in_parts = kept in CODE_BITS or ELEMENT_BYTES[kept] > width
        return of_bytes(found, kept, self.geometry.nibbles) if in_parts else found

    def scale(self, plane: int, slot: int, head: int, number: int = 0) -> int:
        """The pattern of a row's scale after the write, or of the `number` behind it."""
        width = ELEMENT_BYTES[self.geometry.scale_dtype]
        place = (self.geometry.scale_at(self.layer, plane, slot, head) + number) * width
        return int.from_bytes(self.after.scales[place : place + width], "little")

    def scale_bits(self, plane: int, slot: int, head: int) -> list[int]:
        """The patterns of the scale of a row, and of the number beside it if it has one; of a tensor, its scale."""
        scale = self.geometry.scale_of(plane)
        return [self.scale(plane, slot, head, n) for n in range(1 if scale == "tensor" else SCALES[scale])]


def place_name(geometry: Geometry, place: int) -> str:
    """Says what lies at a place of the flat buffer."""
    owner = owners(geometry).get(place)
    if owner is None:
        return "a gap or guard, which belongs to nobody"
    layer, plane, slot, head, element = owner
    block, offset = divmod(slot, geometry.block_size)
    what = "element" if geometry.stored(plane) == geometry.dim(plane) else "byte"
    return f"layer {layer}, {PLANES[plane]}, block {block}, offset {offset}, head {head}, {what} {element}"


@lru_cache(maxsize=64)
def owners(geometry: Geometry) -> dict[int, tuple[int, int, int, int, int]]:
    """The (layer, plane, slot, head, element) of each place that belongs to one."""
    return dict(places_of(geometry))


@lru_cache(maxsize=1 << 14)
def _places(geometry: Geometry, layer: int, plane: int, slot: int, head: int) -> list[int]:
    where = layout_of(geometry).planes[layer][plane]
    block, offset = divmod(slot, geometry.block_size)
    return [where.at(block, offset, head, element) for element in range(geometry.stored(plane))]


def strays(write: Write) -> list[int]:
    """The places of the flat buffer that changed and belong to no slot that is written."""
    before, after, width = write.before.memory, write.after.memory, ELEMENT_BYTES[write.geometry.kept]
    if before == after:
        return []
    named, known = {slot for slot in write.slots if slot != PAD_SLOT}, owners(write.geometry)
    changed = sorted({i // width for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b})
    return [p for p in changed if p not in known or known[p][0] != write.layer or known[p][2] not in named]


def _element(write: Write, place: int) -> int:
    width = ELEMENT_BYTES[write.geometry.kept]
    return int.from_bytes(write.after.memory[place * width : (place + 1) * width], "little")


def first_wrong(write: Write) -> int | None:
    """The place of the first stray byte, else of the first row that a law blames, or of its first wrong element."""
    if places := strays(write):
        return places[0]
    geometry = write.geometry
    for plane, slot, head, row in write.heads():
        kept, places = write.kept(plane, slot, head), write.places(plane, slot, head)
        if geometry.scale_of(plane) == "none":
            wrong = [i for i, (a, b) in enumerate(zip(kept, row, strict=True)) if a != b]
            if wrong:
                return places[wrong[0] * (len(places) // len(row))]
            continue
        alone, stored = geometry.alone(plane), write.scale_bits(plane, slot, head)
        if (
            (alone.scale_numbers and scale_error(alone, write.traits, row, stored))
            or code_error(alone, write.traits, row, kept, stored)
            or decoded_error(alone, write.traits, row, kept, stored)
        ):
            return places[0]
    for plane, slot, head, element, _ in _nobody_wrote(write):
        places = write.places(plane, slot, head)
        return places[element * (len(places) // geometry.dim(plane))]
    return None


def stray_scales(write: Write) -> list[int]:
    """The places of the buffer of scales that changed and belong to no row that is written."""
    before, after, width = write.before.scales, write.after.scales, ELEMENT_BYTES[write.geometry.scale_dtype]
    if before == after:
        return []
    named = {
        write.geometry.scale_at(write.layer, plane, slot, head) + n
        for plane, slot, _ in write.rows()
        for head in range(write.geometry.heads)
        for n in range(SCALES[write.geometry.scale_of(plane)])
    }
    changed = {i // width for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    return sorted(changed - named)


@law("kv_write", answers=("vllm#43810", "sglang#32477"))
def padding(write: Write) -> str | None:
    """A row for padding is written nowhere."""
    if PAD_SLOT not in write.slots or write.before == write.after:
        return None
    places = strays(write)
    if all(slot == PAD_SLOT for slot in write.slots):
        return f"padding was written to {place_name(write.geometry, places[0]) if places else 'the scales'}"
    known = owners(write.geometry)
    for place in places if write.geometry.scale == "none" else ():
        _, plane, _, head, element = known.get(place, (0, 0, 0, 0, 0))
        at = head * write.geometry.dim(plane) + element
        found = _element(write, place)
        rows = zip(write.slots, (write.keys, write.values)[plane], strict=True)
        if place in known and any(slot == PAD_SLOT and row[at] == found for slot, row in rows):
            return f"padding was written to {place_name(write.geometry, place)}"
    return None


@law("kv_write", answers=("flashinfer#527", "flashinfer#3136", "kvcached#330", "LMCache#4463"))
def write_isolation(write: Write) -> str | None:
    """Nothing changes but the slots that are written: no other byte of the buffer, its gaps and its guards."""
    places = strays(write)
    if places:
        more = f", and {len(places) - 1:,} more places changed" if len(places) > 1 else ""
        return f"{_call(write)} changed place {places[0]}: {place_name(write.geometry, places[0])}{more}"
    scales = stray_scales(write)
    return f"{_call(write)} changed scale {scales[0]}, which is of another row" if scales else None


@law("kv_write", answers=("FastDeploy#5544", "flashinfer#527"))
def content_equality(write: Write) -> str | None:
    """Where nothing is quantised, a slot holds the row that was written to it, bit for bit."""
    for plane, slot, head, row in write.heads():
        if write.geometry.scale_of(plane) != "none":
            continue
        kept = write.kept(plane, slot, head)
        if kept != row:
            return f"{_of(plane, slot, head)} holds {_hex(kept)}, not {_hex(row)}"
    return None


@law("kv_write", needs=("repeats",), answers=("design.md: duplicate destinations have no defined result",))
def repeats(write: Write) -> str | None:
    """Of a slot that comes twice, each element that is not quantised is one of the writers'."""
    for plane, slot, head, element, bits in _nobody_wrote(write):
        return f"{_of(plane, slot, head)} has {bits:#x} at element {element}, which nobody wrote"
    return None


def _nobody_wrote(write: Write) -> Iterator[tuple[int, int, int, int, int]]:
    """(plane, slot, head, element, bits) of what is kept of no writer of a slot that comes twice, unless quantised."""
    for slot, plane in itertools.product(sorted(write.repeated()), (0, 1)):
        if write.geometry.scale_of(plane) != "none":
            continue
        dim, rows = write.geometry.dim(plane), [row for p, s, row in write.rows() if p == plane and s == slot]
        for head in range(write.geometry.heads):
            for element, bits in enumerate(write.kept(plane, slot, head)):
                if bits not in [row[head * dim + element] for row in rows]:
                    yield plane, slot, head, element, bits


@law("kv_write", answers=("TensorRT-LLM#2699",))
def scale_exact(write: Write) -> str | None:
    """The scale of a row is that of its own elements, within the rounding of its dtype."""
    for plane, slot, head, row in write.codes():
        alone = write.geometry.alone(plane)
        wrong = scale_error(alone, write.traits, row, write.scale_bits(plane, slot, head))
        if alone.scale_numbers and wrong:
            return f"the scale of {_of(plane, slot, head)} {wrong}"
    return None


@law("kv_write", answers=("TensorRT-LLM#2699",))
def codes(write: Write) -> str | None:
    """By the scale that is stored, each code is the rounded quotient; what is out of range saturates."""
    return _first_error(write, code_error)


@law("kv_write", answers=("TensorRT-LLM#2699",))
def decoded_within_bound(write: Write) -> str | None:
    """What a reader decodes is finite, and not further from what was written than a code is wide."""
    return _first_error(write, decoded_error)


def _first_error(write: Write, error: Callable[..., str | None]) -> str | None:
    """What is wrong with the first quantised row of a head: `error` takes the row, its codes and its scale."""
    for plane, slot, head, row in write.codes():
        kept, scale = write.kept(plane, slot, head), write.scale_bits(plane, slot, head)
        if wrong := error(write.geometry.alone(plane), write.traits, row, kept, scale):
            return f"{_of(plane, slot, head)} {wrong}"
    return None


@law("kv_write", needs=("can_gather",), answers=("sglang#26817",))
def gather_exact(write: Write, found: tuple[Sequence[Row], Sequence[Row]]) -> str | None:
    """gather returns the bits of the slots as they are kept, in the order asked for."""
    for plane, rows in enumerate(found):
        for slot, row in zip(write.slots, rows, strict=True):
            kept = [bits for head in range(write.geometry.heads) for bits in write.kept(plane, slot, head)]
            if list(row) != kept:
                return f"gather returned {_hex(row)} for the {PLANES[plane]} of slot {slot}, not {_hex(kept)}"
    return None


@law("kv_write", answers=("vllm#43810",))
def purity(write: Write) -> str | None:
    """Reading changes nothing."""
    return "a gather changed the buffers" if write.before != write.after else None


def _call(write: Write) -> str:
    return f"a write to layer {write.layer}, slots {list(write.slots)},"


def _of(plane: int, slot: int, head: int) -> str:
    return f"the {PLANES[plane]} of slot {slot}, head {head},"


def _hex(row: Sequence[int]) -> str:
    return "[" + " ".join(f"{bits:x}" for bits in row) + "]"


LAWS = (*laws_of(globals()), ERROR_CONTRACT, TERMINATION)
