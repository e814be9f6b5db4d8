"""The door for pytest."""

from __future__ import annotations

import pytest

MANAGERS = """
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.reference.slot_pool import SlotPool
broken = FAULTS["pool-occupy-toggles"].make
"""


@pytest.fixture
def project(pytester):
    pytester.makepyfile(mypool=MANAGERS)
    pytester.syspathinsert()
    return pytester


def test_target_option_adds_a_test(project):
    result = project.runpytest_subprocess("--kvlockstep-target", "slot_pool=mypool:SlotPool")
    result.assert_outcomes(passed=1)


def test_target_option_takes_a_file(project):
    project.mkdir("my-dir").joinpath("my_file.py").write_text(MANAGERS)
    result = project.runpytest_subprocess("--kvlockstep-target", "slot_pool=my-dir/my_file.py:SlotPool")
    result.assert_outcomes(passed=1)


def test_failing_target_shows_the_failure_page(project):
    result = project.runpytest_subprocess("--kvlockstep-target", "slot_pool=mypool:broken")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*slot_pool on mypool:broken - VIOLATED no_aliasing*", "*replay: kvlockstep replay*"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("slot_pool", "give CONTRACT=MODULE:FACTORY or CONTRACT=FILE.py:FACTORY"),
        ("slots=mypool:SlotPool", "unknown contract 'slots'"),
    ],
)
def test_bad_option(project, option, message):
    result = project.runpytest_subprocess("--kvlockstep-target", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_subclassed_machine(project):
    project.makepyfile(
        test_pools="""
        from hypothesis.stateful import invariant
        from kvlockstep.machines import SlotPoolMachine
        from mypool import SlotPool, broken

        class Mine(SlotPoolMachine):
            target = SlotPool

            @invariant()
            def mine(self):
                assert self.model is None or self.model.target.free_count >= 0

        class Broken(SlotPoolMachine):
            target = broken

        TestMine = Mine.TestCase
        TestBroken = Broken.TestCase
        """
    )
    result = project.runpytest_subprocess("--hypothesis-profile", "kvlockstep-quick")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*VIOLATED no_aliasing at step 2 of 2*", "*state.occupy(op=Op('occupy', slot=0))*"])


def test_hypothesis_profile_stays_the_users(project):
    project.makepyfile(
        test_profile="""
        from hypothesis import settings
        def test_default():
            assert settings.default.max_examples == settings.get_profile("default").max_examples
            assert settings.get_profile("kvlockstep-ci").max_examples == 100
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=1)
