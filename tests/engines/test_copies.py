"""What adapters of kernels that copy share, on copies of our own: guards see what no block holds."""

from __future__ import annotations

import pytest
import torch
from driving import walk

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.loading import Engine, EngineMissing
from kvlockstep.impl.engines.prefilled_states import PrefilledStates
from kvlockstep.impl.engines.row_store import GUARD_BYTES, BlockCopies, RowCopies
from kvlockstep.impl.engines.shifted_states import NULL, ShiftedStates
from kvlockstep.models.kv_store import KVStoreModel
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store.shifts import Shifts, shifts_of


class Rows(RowCopies):
    """Copies by indexing."""

    engine = "none"

    def launch(self, sources, targets):
        for rows in self.rows():
            rows[targets] = rows[sources]


class Blocks(BlockCopies):
    page_major = True

    def launch(self, sources, targets):
        self._planes[:, targets] = self._planes[:, sources]


class OneByOne(Rows):
    """A row that was just written is read."""

    def launch(self, sources, targets):
        for source, target in zip(sources, targets, strict=True):
            super().launch(source[None], target[None])


class PastTheEnd(Rows):
    """A row is copied in whole words, and the last one of a plane is no whole word."""

    def launch(self, sources, targets):
        super().launch(sources, targets)
        self._raw[self._guards[1][0]] = 0


class AnotherPlane(Blocks):
    def launch(self, sources, targets):
        self._planes[:, targets] = self._planes[:1, sources]


class Convolving(ShiftedStates):
    """The state of a convolution, in plain torch: what it keeps of the accepted tokens, and the new ones behind."""

    def update(self, update):
        state, lines, accepted, tokens, weight = update
        kept, new = weight.shape[1] - 2, tokens.shape[2]
        kept -= 0 if accepted is not None else new - 1
        for i, line in enumerate(lines.tolist()):
            if line != NULL:
                first = int(accepted[i]) if accepted is not None else new
                before = state[line].clone()
                state[line, :, :kept] = before[:, first : first + kept]
                state[line, :, kept : kept + new] = tokens[i]


class WritesNull(Convolving):
    """The lines of padding are lines like others."""

    def update(self, update):
        super().update(update)
        update.state[-1] = 1


class AcceptsOne(Convolving):
    """One token of a draft is taken to be accepted."""

    def update(self, update):
        accepted = update.accepted
        super().update(update._replace(accepted=None if accepted is None else torch.ones_like(accepted)))


class Filling(PrefilledStates):
    """The state that a request leaves, in plain torch: the last of what was there, if it counts, and of its tokens."""

    def prefill(self, prefill):
        starts, size = prefill.starts().tolist(), prefill.weight.shape[1] - 1
        for i, line in enumerate(prefill.lines.tolist()):
            if line != NULL:
                before = prefill.state[line, :, :size].T
                before = before if self.counts(prefill, i) else torch.zeros_like(before)
                tokens = torch.cat([before, prefill.tokens[starts[i] : starts[i + 1]]])
                prefill.state[line, :, :size] = tokens[-size:].T

    def counts(self, prefill, i):
        return bool(prefill.counts[i])


class NeverCounts(Filling):
    """A prefill takes the state before it for zeros."""

    def counts(self, prefill, i):
        return False


class AlwaysCounts(Filling):
    """A prefill begins with what another request has left."""

    def counts(self, prefill, i):
        return True


@pytest.mark.parametrize("make", [Rows, Blocks, Convolving, Filling])
def test_a_right_copy_holds_and_reaches_everything(make):
    outcome = walk(KVStoreModel, make, 1_500)
    assert outcome.failure is None, outcome.failure
    missed = {goal.id for goal in KVStoreModel.goals if not outcome.reach[goal.id]}
    assert missed == KVStoreModel(KVStoreModel.scopes[0], make).unreachable()


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (OneByOne, "content_equality"),
        (PastTheEnd, "write_isolation"),
        (AnotherPlane, "content_equality"),
        (WritesNull, "write_isolation"),
        (AcceptsOne, "content_equality"),
        (NeverCounts, "content_equality"),
        (AlwaysCounts, "content_equality"),
    ],
)
def test_a_wrong_copy_is_blamed(make, law):
    failure = walk(KVStoreModel, make, 500).failure
    assert failure is not None
    assert failure.law == law


@pytest.mark.parametrize("make", [Rows, Blocks])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_all_memory_is_a_block_or_a_guard(make, dtype):
    store = make(3, 2, 0, KVShape(2, 1, 3, dtype), "layer_major")
    assert store.strays() == 0
    store._planes.fill_(1)
    assert store.strays() == 0
    everything = store._raw.clone().zero_()
    room = everything.view(store._word).as_strided(
        store._planes.shape, store._planes.stride(), GUARD_BYTES // store._planes.element_size()
    )
    room.view(torch.uint8).fill_(1)
    for start, end in store._guards:
        everything[start:end] += 2
    assert set(everything.tolist()) == {1, 2}
    for place in (0, *(start for start, _ in store._guards[1:]), len(store._raw) - 1):
        store._raw[place] ^= 1
    assert store.strays() == len(store._guards) + 1


def test_functions_are_cut_out_of_a_module(tmp_path):
    folder = tmp_path / "engine"
    folder.mkdir()
    lines = ["import no_such_module", "class A:", "    def add(self, x: Missing) -> None:", "        return x + ONE"]
    (folder / "part.py").write_text("\n".join([*lines, "def one(): return ONE"]))
    engine = Engine("engine", tmp_path, "1")
    found = cut(engine, "engine.part", ("A.add", "one"), {"ONE": 1})
    assert (found.add(None, 2), found.one()) == (3, 1)
    with pytest.raises(EngineMissing, match="has no two"):
        cut(engine, "engine.part", ("two",), {})
    with pytest.raises(EngineMissing, match="has no subtract"):
        cut(engine, "engine.part", ("A.subtract",), {})


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([], Shifts(0, {})),
        ([(1, 0), (2, 1)], Shifts(2, {0: 1})),
        ([(2, 0), (5, 4), (6, 5)], None),
        ([(2, 0), (3, 1), (5, 4), (6, 5)], Shifts(2, {0: 2, 1: 1})),
        ([(0, 0)], None),
        ([(2, 1)], None),
        ([(4, 0)], None),
        ([(3, 0), (4, 1)], None),
    ],
)
def test_what_a_shift_is(pairs, found):
    assert shifts_of(pairs, 4) == found
