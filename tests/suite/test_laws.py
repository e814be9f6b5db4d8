"""Laws on forged observations: what no fault happens to do is blamed as well."""

from __future__ import annotations

import itertools

import pytest
from driving import walk
from hypothesis import given
from hypothesis import strategies as st

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.properties import kv_scheduler
from kvlockstep.properties.kv_manager import laws as kv_manager
from kvlockstep.properties.law import Refused
from kvlockstep.reference.paged_cache.contract import PagedStatistics

# What a law knows exactly of a view or an answer: it blames every number there that is one too high or too low, and
# every list that has an element less, or its last one twice.
EXACT = {
    "slot_pool": {"accounting": ["after.free_count"], "version_monotone": ["after.versions.*", "outcome"]},
    "slot_prefix_cache": {
        "prefix_soundness": ["outcome.slot", "outcome.version"],
        "version_current": ["after.entries.*.*"],
    },
    "block_stack": {
        "accounting": ["after.free", "after.num_free", "outcome"],
        "conservation": ["after.free", "after.free.*"],
        "structure": ["after.free", "after.free.*", "outcome", "outcome.*"],
    },
    "radix_cache": {
        "accounting": ["after.free", "after.sizes.*"],
        "conservation": ["after.free", "after.free.*", "after.entries.*.*.*"],
        "eviction_order": ["after.order", "after.order.*"],
        "prefix_soundness": ["outcome.*.*"],
        "refcount_exact": ["after.entries.*.*"],
    },
    "block_pool": {
        "accounting": ["after.num_evictable", "after.num_free", "after.queue"],
        "conservation": ["after.queue", "after.queue.*"],
        "eviction_order": ["after.queue", "after.queue.*"],
        "eviction_safety": ["after.entries.*.*"],
        "refcount_exact": ["after.refs.*"],
    },
    "paged_cache": {
        "accounting": ["after.free", "after.idle", *(f"after.statistics.{name}" for name in PagedStatistics._fields)],
        "conservation": ["after.free", "after.free.*", "after.idle", "after.idle.*"],
        "content_equality": ["after.cached.*", "after.cached.*.*", "after.content.*", "after.content.*.*"],
        "prefix_soundness": ["outcome.cached"],
        "refcount_exact": ["after.refs.*", "after.tables.*.*"],
        "structure": ["after.lengths.*", "after.tables.*"],
    },
    "kv_store": {
        "accounting": ["after.memory_bytes", "outcome"],
        "gather_exact": ["outcome.*.*", "outcome.*.*.*"],
    },
    "slot_mapping": {"structure": ["after.rows.*", "after.rows.*.*"]},
    "decode_graphs": {
        "accounting": ["after.free", "after.num_free"],
        "conservation": ["after.free.*"],
        "content_equality": ["outcome.*.context", "outcome.*.context.*", "outcome.*.status"],
    },
    "kv_streams": {"conservation": ["after.free", "after.free.*"], "stream_order": ["outcome.*"]},
}
LOCKSTEP = [contract for contract, model in MODELS.items() if issubclass(model, LockstepModel)]
COUNTS = st.integers(0, 9)


def steps_of(contract, steps=400):
    """The steps of a random walk on the reference."""
    taken = []

    class Noted(model_of(contract)):
        def notice(self, step):
            taken.append(step)
            super().notice(step)

    walk(Noted, Noted.reference_type, steps, seed=2)
    return taken


def accepted_steps(contract):
    return [step for step in steps_of(contract) if not isinstance(step.outcome, Refused)]


@pytest.mark.parametrize("contract", LOCKSTEP)
def test_a_refusal_that_changes_something_is_blamed_whichever_way_it_goes(contract):
    atomicity = next(law for law in model_of(contract).laws if law.id == "atomicity")
    changes = [(step, step.before, step.after) for step in steps_of(contract) if step.before != step.after]
    assert changes
    for step, one, other in changes:
        refused = step._replace(outcome=Refused("OutOfSlots"))
        assert atomicity(refused._replace(before=one, after=other))
        assert atomicity(refused._replace(before=other, after=one))
        assert atomicity(refused._replace(before=one, after=one, held=step.held_before)) is None


@pytest.mark.parametrize(
    ("contract", "operations"),
    [
        ("slot_pool", {"alloc"}),
        ("block_stack", {"acquire"}),
        ("radix_cache", {"allocate", "evict"}),
        ("block_pool", {"allocate"}),
        ("paged_cache", {"allocate", "append", "evict"}),
        ("decode_graphs", {"admit"}),
        ("kv_streams", {"alloc"}),
    ],
)
def test_what_fits_may_not_be_refused(contract, operations):
    honesty = next(law for law in model_of(contract).laws if law.id == "admission_honesty")
    fitting = [step for step in accepted_steps(contract) if step.op.name in operations]
    assert {step.op.name for step in fitting} == operations
    for step in fitting:
        full = step._replace(outcome=Refused("OutOfSlots"), after=step.before, held=step.held_before)
        assert honesty(full), step.op


@pytest.mark.parametrize(
    ("contract", "operations"),
    [
        ("slot_pool", {"alloc", "occupy"}),
        ("block_stack", {"acquire"}),
        ("block_pool", {"allocate"}),
        ("kv_streams", {"alloc"}),
    ],
)
def test_what_is_handed_out_may_not_have_been_held(contract, operations):
    no_aliasing = next(law for law in model_of(contract).laws if law.id == "no_aliasing")
    takes = [step for step in accepted_steps(contract) if step.op.name in operations and step.held != step.held_before]
    assert {step.op.name for step in takes} == operations
    for step in takes:
        assert no_aliasing(step._replace(held_before=step.held)), step.op
        assert no_aliasing(step) is None


def parts(value):
    """The parts of a value: the name of its place, `*` for any index or key, the part, and what puts another there."""
    if hasattr(value, "_fields"):
        for name in value._fields:
            yield name, getattr(value, name), lambda part, name=name: value._replace(**{name: part})
    elif isinstance(value, dict):
        for key, part in value.items():
            yield "*", part, lambda part, key=key: {**value, key: part}
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield "*", part, lambda part, i=i: type(value)([*value[:i], part, *value[i + 1 :]])


def forgeries(value, path):
    """Where numbers and lists stand in a value, and the value with one of them off by one, or by one element."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from ((path, value + 1), (path, value - 1))
    if isinstance(value, list) and value:
        yield from ((path, value[:-1]), (path, [*value, value[-1]]))
    for name, part, put in parts(value):
        for place, forged in forgeries(part, f"{path}.{name}"):
            yield place, put(forged)


@pytest.mark.parametrize("contract", LOCKSTEP)
def test_what_a_law_knows_exactly_cannot_be_one_off(contract):
    laws = {law.id: law for law in model_of(contract).laws}
    tried = set()
    for step in steps_of(contract)[::3]:
        for field in ("after", "outcome"):
            for place, forged in forgeries(getattr(step, field), field):
                for law in (id_ for id_, places in EXACT[contract].items() if place in places):
                    tried.add((law, place))
                    assert blames(laws[law], step._replace(**{field: forged})), f"{law}: {place} after {step.op}"
    assert tried == {(law, place) for law, places in EXACT[contract].items() for place in places}


def blames(law, step):
    """A law that cannot read what it is shown blames nothing: the agreement does."""
    try:
        return law(step) is not None
    except (TypeError, ValueError, AttributeError, LookupError):
        return False


@pytest.mark.parametrize("order", [1, -1])
def test_a_block_stands_at_one_index_everywhere(order):
    structure = next(law for law in model_of("paged_cache").laws if law.id == "structure")
    forged = []
    for step in accepted_steps("paged_cache"):
        tables = step.after.tables
        for one, other in itertools.permutations(tables, 2):
            if tables[one] and len(tables[other]) > 1 and tables[other][1] not in tables[one]:
                changed = {**tables, one: [tables[other][1], *tables[one][1:]]}
                view = step.after._replace(tables=dict(list(changed.items())[::order]))
                forged.append(step._replace(after=view))
    assert forged
    assert all(structure(step) for step in forged)


def test_only_alloc_and_free_change_which_blocks_are_free():
    atomicity = next(law for law in model_of("kv_streams").laws if law.id == "atomicity")
    changes = [step for step in accepted_steps("kv_streams") if step.before.free != step.after.free]
    assert {step.op.name for step in changes} == {"alloc", "free"}
    for step in changes:
        write = step._replace(op=Op("write"))
        assert atomicity(step) is None
        assert atomicity(write)
        assert atomicity(write._replace(before=step.after, after=step.before))


@given(st.integers(1, 5), COUNTS, COUNTS)
def test_every_slot_of_a_held_block_is_held(size, slot, block):
    assert bool(kv_manager.eviction_safety([slot], {block}, size, {}, 1)) == (slot // size == block)


@given(COUNTS, COUNTS)
def test_a_table_is_as_long_as_what_is_read(slots, stop):
    assert bool(kv_scheduler.coverage(slots, stop)) == (slots != stop)


def test_a_request_that_goes_back_was_not_named_as_preempted():
    """An adapter that finds preemptions by comparing queues misses a request that comes back in the same batch."""
    assert kv_scheduler.continuity(44, 46, 45, 46, False) == (
        "continues at position 44, but 45 are computed, and no batch has preempted it since"
    )
    assert kv_scheduler.continuity(45, 46, 44, 46, False) == "continues at position 45, but 44 are computed"


@given(st.booleans(), COUNTS, COUNTS)
def test_a_token_is_sampled_behind_the_last_known_one(samples, stop, known):
    assert bool(kv_scheduler.sampling(samples, stop, known)) == (samples != (stop == known))
