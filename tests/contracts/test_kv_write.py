"""kv_write: the reference, our writers by indexing and by kernel, the layouts and the numbers."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from driving import FEW, explore, walk
from slow import slow
from watched import watched

from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import faults_of
from kvlockstep.impl.kv_write.arena import DTYPES, Arena, bytes_of, tensor_of
from kvlockstep.impl.kv_write.writer import QuantisedWriter, Writer
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_write import KVWriteModel
from kvlockstep.models.kv_write.scope import KVWriteScope, geometry_of
from kvlockstep.properties.kv_write import laws, rows
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv_write import residual, split
from kvlockstep.reference.kv_write import writer as reference
from kvlockstep.reference.kv_write.contract import PAD_SLOT, KVWriteTarget, WriteTraits
from kvlockstep.reference.kv_write.geometry import GUARD, LAYOUTS, Geometry
from kvlockstep.reference.kv_write.layout import layout_of, places_of
from kvlockstep.reference.kv_write.numbers import CODE_BITS, ELEMENT_BYTES, decode, encode, in_bytes, of_bytes

REFERENCES = [
    reference.KVWriter,
    reference.QuantisedWriter,
    reference.ZeroPointWriter,
    reference.TensorScaleWriter,
    split.PowerScaleWriter,
    split.NearestPowerWriter,
    split.UnitScaleWriter,
    split.LowEndWriter,
    split.NormWriter,
    split.SplitWriter,
    split.NormAndLowWriter,
    residual.ResidualAndNormWriter,
]
OURS = [Writer, QuantisedWriter]
PLAIN = Geometry(2, 2, 1, 2, 3, 3, "float32", "float32")


# `score` plays the other ones, which are known-good targets, until they have reached everything.
@pytest.mark.parametrize("make", [reference.QuantisedWriter, split.NormWriter])
def test_a_reference_holds_and_reaches_everything(make):
    outcome = walk(KVWriteModel, make, 1_500)
    assert outcome.failure is None, outcome.failure
    missed = {goal.id for goal in KVWriteModel.goals if not outcome.reach[goal.id]}
    assert missed == KVWriteModel(KVWriteModel.scopes[0], make).unreachable()


@pytest.mark.parametrize("make", OURS)
def test_ours_holds_and_reaches_everything(make, device):
    outcome = walk(KVWriteModel, partial(make, device=device), 1_500)
    assert outcome.failure is None, outcome.failure
    missed = {goal.id for goal in KVWriteModel.goals if not outcome.reach[goal.id]}
    assert missed == KVWriteModel(KVWriteModel.scopes[0], make).unreachable()


@pytest.mark.parametrize("seed", [1, *slow(0, 2)])
def test_the_kernel_moves_bits_like_the_reference(seed):
    pytest.importorskip("triton")
    outcome = walk(KVWriteModel, partial(Writer, kernels=True), 60, seed=seed)
    assert outcome.failure is None, outcome.failure


def test_the_kernel_quantises_to_int8_like_the_reference():
    """Not to fp8: where there is no card, the interpreter of Triton rounds it wrongly."""
    pytest.importorskip("triton")

    class Int8(QuantisedWriter):
        kept = "int8"
        given = "float32 float16"

    outcome = walk(KVWriteModel, partial(Int8, kernels=True), 60)
    assert outcome.failure is None, outcome.failure


@pytest.mark.parametrize("scope", KVWriteModel.small_scopes, ids=str)
def test_agrees_in_every_state_of_a_small_scope(scope):
    outcome = watched(explore, KVWriteModel, Writer, scope, steps=60_000)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states >= 9


class TestKVWriteMachine(machine_for(KVWriteModel, Writer).TestCase):
    settings = FEW


def test_every_law_names_a_fault():
    assert {law.id for law in KVWriteModel.own_laws} <= {fault.law for fault in faults_of("kv_write")}


@pytest.mark.parametrize("make", [*REFERENCES, *OURS])
def test_meets_the_protocol(make):
    assert isinstance(make(), KVWriteTarget)


def test_a_target_without_traits_gets_plain_geometries():
    class Plain:
        def __init__(self):
            own = reference.KVWriter()
            for name in ("open", "write", "memory"):
                setattr(self, name, getattr(own, name))

    outcome = walk(KVWriteModel, Plain, 1_500)
    assert outcome.failure is None
    missed = {goal.id for goal in KVWriteModel.goals if not outcome.reach[goal.id]}
    assert missed == KVWriteModel(KVWriteModel.scopes[0], Plain).unreachable()
    assert {"layout_HND", "repeated", "own_dims", "gathered", "row_tiny"} <= missed


def test_a_finding_shows_the_buffer_around_the_wrong_bytes():
    model = KVWriteModel(KVWriteScope(2, 2, 1, 1, 3, 3, 2, 2, 0), reference.KVWriter)
    model.judge.adapter._place = lambda *where: 9
    with pytest.raises(Divergence) as caught:
        model.step(Op("write", layer=0, slots=[3], stamps=[1]))
    lines = caught.value.details
    assert any(line.endswith("layer 0, K, block 0, offset 0, head 0, element 1  <- differs") for line in lines)
    assert all(line.startswith("place ") and ": expected " in line and ", found " in line for line in lines)
    assert [table.title for table in model.picture().tables] == ["geometry", "expected beside found"]


def test_a_name_that_is_no_layout_is_told():
    class Odd(reference.KVWriter):
        layouts = "NHD DNH"

    with pytest.raises(Divergence, match=r"the trait layouts names \['DNH'\]; known: NHD HND"):
        KVWriteModel(KVWriteModel.scopes[0], Odd)


def test_scales_of_rows_have_to_be_shown():
    class Hidden(reference.QuantisedWriter):
        keeps_scales = False

    with pytest.raises(Divergence, match="without keeps_scales"):
        KVWriteModel(KVWriteModel.scopes[0], Hidden)


@pytest.mark.parametrize(
    ("base", "traits", "wrong"),
    [
        (reference.KVWriter, {"value_scale": "row", "keeps_scales": True}, "V is quantised only where K is"),
        (
            split.SplitWriter,
            {"kept": "same", "scale": "none", "value_kept": "int8", "value_scale": "row"},
            "V is quantised only where K is",
        ),
        (
            reference.TensorScaleWriter,
            {"value_scale": "row", "keeps_scales": True},
            "value_scale = 'row' with scale = 'tensor', which goes with 'none' alone",
        ),
        (split.UnitScaleWriter, {"value_scale": "row"}, "value_scale = 'row' without keeps_scales"),
        (reference.QuantisedWriter, {"kept": "same"}, "scale = 'row' for K in float32, which is no dtype of codes"),
        (split.SplitWriter, {"value_kept": "", "layouts": "NHD"}, "keeps V in float8_e4m3fn, not as given"),
        (reference.KVWriter, {"kept": "int8"}, "keeps K in int8, not as given, with scale = 'none'"),
        (split.SplitWriter, {"layouts": "HND"}, "the traits ask for what cannot be: no such geometry"),
        (
            reference.TensorScaleWriter,
            {"power_scales": "nearest"},
            "power_scales = 'nearest' without a scale of each row",
        ),
        (
            reference.QuantisedWriter,
            {"scale_dtype": "float8_e8m0fnu"},
            "scale_dtype = 'float8_e8m0fnu', which has powers of two alone, without power_scales",
        ),
    ],
)
def test_traits_that_do_not_go_together_are_told(base, traits, wrong):
    with pytest.raises(Divergence, match=wrong) as caught:
        KVWriteModel(KVWriteModel.scopes[0], type("Odd", (base,), traits))
    assert caught.value.law == ERROR_CONTRACT.id


@pytest.mark.parametrize("dim", [1, 2, 8, 15, 16])
def test_an_outlier_comes_to_each_element(dim):
    """Also in rows of more than eight: a kernel may pass over one of them."""
    assert {rows.outlier_at(seed, 0, 0, dim) for seed in range(rows.SEEDS)} == set(range(dim))
    assert {rows.outlier_at(seed, 0, 0, 64) for seed in range(rows.SEEDS)} >= {0, 63}


class TensorAndBits(split.SplitWriter):
    """K by the scale of its tensor, V as it is."""

    scale = "tensor"
    keeps_scales = False
    writers = (reference.TensorScaleWriter, reference.KVWriter)


class CastAndRow(split.SplitWriter):
    """K as the closest fp8 numbers, V with scales."""

    scale, value_kept, value_scale = "one", "", "row"
    writers = (split.UnitScaleWriter, reference.QuantisedWriter)


class RepeatsBesideCodes(split.SplitWriter):
    """A slot may come twice; V is kept as it is."""

    repeats = True


@pytest.mark.parametrize("make", [TensorAndBits, CastAndRow, RepeatsBesideCodes])
def test_scales_that_go_together_hold(make):
    outcome = walk(KVWriteModel, make, 1_500)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["repeated"] > 0 or not make.repeats


def test_a_v_that_is_kept_as_it_is_has_one_of_the_writers_where_a_slot_comes_twice():
    class Cleared(RepeatsBesideCodes):
        def write(self, layer, slots, keys, values):
            super().write(layer, slots, keys, values)
            for slot in set(slots):
                if slots.count(slot) > 1 and slot != PAD_SLOT:
                    self._store(layer, 1, slot, 0, [0] * (self._geometry.dim(1) - 1))

    model = KVWriteModel(KVWriteScope(2, 2, 1, 1, 3, 3, 0, 0, 0), Cleared)
    assert "repeats" not in model.not_checked()
    with pytest.raises(Divergence, match="the V of slot 3, head 0, has 0x0 at element 0, which nobody wrote") as caught:
        model.step(Op("write", layer=0, slots=[3, 3], stamps=[1, 2]))
    assert caught.value.law == "repeats"
    assert any("V, block 1, offset 1, head 0, byte 0  <- differs" in line for line in caught.value.details)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gap", [0, 3])
def test_each_element_has_a_place_of_its_own_between_the_guards(layout, gap):
    geometry = Geometry(3, 4, 2, 2, 6, 6, "int8", "int8", layout, gap, gap, 2 if layout == "packed" else 1)
    places = [place for place, _ in places_of(geometry)]
    total = layout_of(geometry).places
    assert len(set(places)) == len(places) == 2 * 2 * 3 * 4 * 2 * 6
    assert min(places) >= GUARD
    assert max(places) < total - GUARD


@pytest.mark.parametrize("layout", ["NHD", "HND", "packed"])
def test_a_view_of_the_arena_has_the_places_of_the_layout(layout):
    geometry = Geometry(2, 3, 2, 2, 4, 4, "int8", "int8", layout, 1, 2, 2 if layout == "packed" else 1)
    arena = Arena(geometry, bytes(layout_of(geometry).places), b"")
    for place, (layer, plane, slot, head, element) in places_of(geometry):
        view, (block, offset) = arena.cache(layer, plane), divmod(slot, 3)
        where = block, offset, head, element
        if layout == "packed":
            where = (block, head, element // 2, offset, element % 2) if plane == 0 else (block, head, element, offset)
        assert view[where].data_ptr() - arena.flat.data_ptr() == place


def test_joint_and_paired_views():
    joint = Geometry(2, 2, 1, 2, 4, 2, "int8", "int8", "joint", 3)
    arena = Arena(joint, bytes(layout_of(joint).places), b"")
    for place, (_, plane, slot, head, element) in places_of(joint):
        where = slot // 2, slot % 2, head, element + 4 * plane
        assert arena.joint(0)[where].data_ptr() - arena.flat.data_ptr() == place
    paired = Geometry(2, 2, 1, 2, 4, 4, "int8", "int8", "paired", 3)
    arena = Arena(paired, bytes(layout_of(paired).places), b"")
    for place, (_, plane, slot, head, element) in places_of(paired):
        assert arena.paired(0)[slot, head + 2 * plane, element].data_ptr() - arena.flat.data_ptr() == place


@pytest.mark.parametrize("change", [{"blocks": 0}, {"layout": "DNH"}, {"kept": "int3"}, {"pack": 2}, {"key_gap": -1}])
def test_a_geometry_that_cannot_be_is_refused(change):
    with pytest.raises(InvalidArgument, match="no such geometry"):
        layout_of(PLAIN._replace(**change))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int8", "uint8"]
)
def test_every_pattern_is_the_number_that_torch_says(dtype):
    width = ELEMENT_BYTES[dtype]
    data = b"".join(bits.to_bytes(width, "little") for bits in range(256**width))
    numbers = tensor_of(data, dtype, "cpu").to(torch.float64).tolist()
    for bits, number in enumerate(numbers):
        found = decode(bits, dtype)
        assert found == number or (math.isnan(found) and math.isnan(number)), bits


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_are_rounded_as_torch_rounds_them(dtype):
    numbers = [
        s * m * 2.0**e for e in range(-26, 10) for m in (1, 1.0625, 1.1875, 1.3, 1.96875, 1.999) for s in (1, -1)
    ]
    numbers = [number for number in numbers if abs(number) <= 448]
    data = bytes_of(torch.tensor(numbers, dtype=torch.float32).to(DTYPES[dtype]))
    width = ELEMENT_BYTES[dtype]
    wanted = [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]
    assert [encode(float(torch.tensor(number, dtype=torch.float32)), dtype) for number in numbers] == wanted


def test_codes_saturate():
    assert [encode(number, "int8") for number in (127.4, 300.0, -128.4, -1e9, math.nan)] == [127, 127, 0x80, 0x80, 0]
    assert [encode(number, "float8_e4m3fn") for number in (1e9, -1e9, math.nan)] == [0x7E, 0xFE, 0x7F]
    assert [encode(number, "float8_e5m2") for number in (1e9, -1e9, math.nan)] == [0x7B, 0xFB, 0x7F]
    assert [encode(number, "float4_e2m1fn") for number in (1e9, -1e9, 5.0, 3.4, 0.2)] == [0x7, 0xF, 6, 5, 0]
    assert [encode(n, "float8_e8m0fnu") for n in (0.0, 0.25, 1.0, 3.1, 1e40)] == [0, 125, 127, 129, 254]
    assert encode(1e9, "float16") == 0x7C00
    assert decode(encode(math.nan, "bfloat16"), "bfloat16") != decode(0, "bfloat16")


def test_each_kind_of_row_is_what_it_says():
    geometry = PLAIN._replace(key_dim=8, value_dim=8, kept="int8", scale="row")
    kinds = {}
    for kind in rows.KINDS:
        stamps = [rows.stamp_of(kind, seed) for seed in range(rows.SEEDS)]
        assert {rows.kind_of(stamp) for stamp in stamps} == {kind}
        kinds[kind] = [[decode(bits, "float32") for bits in rows.row_of(stamp, 0, geometry)[:8]] for stamp in stamps]
    assert all(row == [0.0] * 8 for row in kinds["zeros"])
    assert all(len(set(row)) == 1 and row[0] for row in kinds["equal"])
    assert all(min(row) > 0 for row in kinds["positive"])
    assert all(max(row) < 0 for row in kinds["negative"])
    assert {max(range(8), key=lambda i: abs(row[i])) for row in kinds["outlier"]} == set(range(8))
    assert all(0 < max(map(abs, row)) < 1e-29 for row in kinds["tiny"])
    assert all(max(map(abs, row)) > 1e29 for row in kinds["huge"])


def test_a_code_on_a_tie_may_go_either_way_and_no_further():
    traits = KVWriteModel(KVWriteModel.scopes[0], reference.QuantisedWriter).judge.traits
    geometry = Geometry(1, 1, 1, 1, 2, 2, "float32", "int8", scale="row", layout="NHD")
    stored = [encode(1.0, "float32")]
    row = [encode(127.0, "float32"), encode(2.5, "float32")]
    legal = [code for code in range(256) if laws.code_error(geometry, traits, row, [127, code], stored) is None]
    assert legal == [2, 3]


@pytest.mark.parametrize(("narrow", "dim"), [(True, 1), (False, 2)])
def test_a_target_without_narrow_rows_gets_no_rows_of_one_element(narrow, dim):
    geometry = geometry_of(KVWriteModel.small_scopes[1], WriteTraits(scale="zero", narrow_rows=narrow))
    assert geometry.key_dim == geometry.value_dim == dim


@pytest.mark.parametrize("kept", ["uint4", "uint3", "uint2", "float16", "float32"])
@pytest.mark.parametrize("nibbles", ["halves", "pairs"])
def test_bytes_of_a_row_are_the_row_again(kept, nibbles):
    row = [code & (1 << CODE_BITS.get(kept, 8)) - 1 for code in [5, 0, 7, 1, 2, 6, 3, 4] * 2]
    found = in_bytes(row, kept, nibbles)
    assert len(found) == 16 * CODE_BITS.get(kept, 8 * ELEMENT_BYTES[kept]) // 8
    assert of_bytes(found, kept, nibbles) == row


def test_eight_codes_of_three_bits_lie_in_three_bytes_the_first_one_lowest():
    assert in_bytes([1, 2, 3, 4, 5, 6, 7, 0], "uint3", "pairs") == [0b11010001, 0b01011000, 0b00011111]


@pytest.mark.parametrize(("nibbles", "first"), [("pairs", 0b11_10_01_00), ("halves", 0b00_00_00_00)])
def test_four_codes_of_two_bits_lie_in_a_byte_neighbours_or_one_of_each_quarter(nibbles, first):
    assert in_bytes([0, 1, 2, 3] * 4, "uint2", nibbles)[0] == first
    assert in_bytes([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4, "uint2", "halves") == [0b11_10_01_00] * 4


def test_the_next_power_of_two():
    assert [split.next_power(number) for number in (0.0, 0.25, 0.26, 0.5, 1.0, 3.0)] == [0.0, 0.25, 0.5, 0.5, 1.0, 4.0]


@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("given", ["float16", "float32"])
def test_a_v_that_is_wider_than_a_place_lies_at_multiples_of_its_width(gap, given):
    geometry = Geometry(
        3, 3, 2, 1, 5, 3, given, "int8", "NHD", gap, gap, scale="row", value_kept=given, value_scale="none"
    )
    width, places = ELEMENT_BYTES[given], [place for place, _ in places_of(geometry)]
    assert len(set(places)) == len(places) == 2 * 3 * 3 * (5 + 3 * width)
    assert min(places) >= GUARD
    assert max(places) < layout_of(geometry).places - GUARD
    planes = [pair[1] for pair in layout_of(geometry).planes]
    assert {n % width for plane in planes for n in (plane.base, plane.block, plane.offset, plane.head)} == {0}


def test_numbers_of_k_and_of_v_have_places_of_their_own():
    geometry = Geometry(2, 2, 2, 3, 4, 4, "float32", "uint4", scale="norm", value_scale="low")
    first = [
        geometry.scale_at(layer, plane, s, h)
        for layer in (0, 1)
        for plane in (0, 1)
        for s in range(4)
        for h in range(3)
    ]
    all_ = [place + n for i, place in enumerate(first) for n in range(2 if i // 12 % 2 else 1)]
    assert sorted(all_) == list(range(GUARD, geometry.scale_places - GUARD))


def test_a_v_of_an_unknown_dtype_is_told():
    class Odd(split.SplitWriter):
        value_kept = "int3"

    with pytest.raises(Divergence, match="the trait value_kept is 'int3'"):
        KVWriteModel(KVWriteModel.scopes[0], Odd)


def test_a_scale_that_has_to_be_a_power_of_two_may_be_either_where_the_exact_one_is_next_to_it():
    traits = KVWriteModel(KVWriteModel.scopes[0], split.PowerScaleWriter).judge.traits
    geometry = Geometry(1, 1, 1, 1, 1, 1, "float32", "float8_e4m3fn", scale="row")
    legal = {}
    for largest in (448.0, 449.0):
        row = [encode(largest, "float32")]
        scales = [0.5, 1.0, 1.5, 2.0, 4.0]
        legal[largest] = [s for s in scales if laws.scale_error(geometry, traits, row, [encode(s, "float32")]) is None]
    assert legal == {448.0: [1.0, 2.0], 449.0: [2.0]}


def test_the_nearest_power_of_two_is_a_power_and_near():
    traits = KVWriteModel(KVWriteModel.scopes[0], split.NearestPowerWriter).judge.traits
    geometry = Geometry(1, 1, 1, 1, 2, 2, "float32", "float4_e2m1fn", scale="row")
    legal = {}
    for largest in (6.0, 8.5):
        row, scales = [encode(largest, "float32"), 0], [0.5, 1.0, 1.25, 2.0]
        legal[largest] = [s for s in scales if laws.scale_error(geometry, traits, row, [encode(s, "float32")]) is None]
    assert legal == {6.0: [1.0], 8.5: [1.0, 2.0]}


def test_a_residual_code_says_on_which_side_of_its_step_an_element_is():
    traits = KVWriteModel(KVWriteModel.scopes[0], residual.ResidualWriter).judge.traits
    geometry = Geometry(1, 1, 1, 1, 2, 2, "float32", "uint4", scale="residual")
    row, stored = [encode(number, "float32") for number in (0.6, 0.8)], [encode(n, "float32") for n in (1.0, 0.057)]
    assert laws.scale_error(geometry, traits, row, stored) is None
    assert laws.scale_error(geometry, traits, row, [stored[0], encode(0.08, "float32")])
    # Steps are an eighth off the quarters: 0.6 is below 0.625, and 0.8 is below 0.875.
    legal = [code for code in range(16) if laws.code_error(geometry, traits, row, [6, code], stored) is None]
    assert legal == [7]
