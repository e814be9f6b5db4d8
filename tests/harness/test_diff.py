"""Two engines on one trace."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvlockstep.commands.cli import cli
from kvlockstep.commands.diff import Compared, common_traits, diff
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.targets import resolve


def found(a, b, steps=3_000, **options):
    return diff(resolve("kv_manager", a), resolve("kv_manager", b), steps=steps, seed=1, **options).difference


def test_engines_that_do_the_same_agree():
    assert found("blocks", "pool", steps=800) is None


HINT = " (nothing was evicted; --pressure compares eviction)"


@pytest.mark.parametrize(("pressure", "said"), [([], HINT), (["--pressure"], "")])
def test_agreement_says_whether_anything_was_evicted(pressure, said):
    arguments = ["diff", "--target", "reference", "--target", "reference", "--steps", "200", *pressure]
    assert CliRunner().invoke(cli, arguments).stdout == f"AGREE: reference and reference in 200 steps{said}\n"
    evicted = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)["evicted"]
    assert evicted == bool(pressure)


def test_pressure_is_not_advised_to_who_has_it(monkeypatch):
    monkeypatch.setattr("kvlockstep.commands.diff.diff", lambda *_, **__: Compared(None, evicted=False))
    arguments = ["diff", "--target", "reference", "--target", "reference", "--pressure"]
    assert CliRunner().invoke(cli, arguments).stdout.endswith(" steps (nothing was evicted)\n")


def test_a_policy_shows_in_a_few_steps():
    """A manager that drops what an aborted request had cached, beside one that keeps it."""
    trace = found("reference", "variant:caches-nothing-on-abort")
    assert [op.name for op in trace.ops] == ["admit", "forward", "abort", "admit"]
    assert trace.law == "difference"
    assert trace.details[0].startswith("reference: cached ")


def test_an_operation_can_be_left_out():
    trace = found("reference", "variant:caches-nothing-on-abort", without=["abort", "forward"])
    assert trace is None, "without a forward nothing is cached"


def test_a_fault_of_either_engine_is_reported_with_its_name():
    trace = found("fault:kv-abort-leaks", "reference")
    assert trace.message.startswith("fault:kv-abort-leaks: ")


def test_chunks_are_common_only_where_blocks_are():
    small = Traits(block_size=2, total=16, chunk=True, chunk_align=2, tokens_per_decode=3, can_fork=True)
    large = Traits(block_size=4, total=16, chunk=True, chunk_align=3, max_length=9)
    assert not common_traits(small, large).chunk
    both = common_traits(small, Traits(block_size=2, total=16, chunk=True, chunk_align=3, max_length=9))
    assert (both.chunk, both.chunk_align, both.tokens_per_decode, both.max_length, both.can_fork) == (
        True,
        6,
        3,
        9,
        False,
    )


def test_the_command_answers_in_json():
    arguments = ["diff", "--target", "reference", "--target", "variant:caches-nothing-on-abort", "--json"]
    done = CliRunner().invoke(cli, arguments)
    document = json.loads(done.stdout)
    assert done.exit_code == 1
    assert document["agree"] is False
    assert document["difference"]["law"] == "difference"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "blocks"], "give --target twice, not 1 times"),
        (["--target", "blocks", "--target", "pool", "--without", "sleep"], "no operation of kv_manager"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    assert message in str(CliRunner().invoke(cli, ["diff", *arguments]).exception)
