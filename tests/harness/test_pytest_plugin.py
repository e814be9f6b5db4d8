"""The door for pytest."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

MANAGERS = """
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.reference.slot_pool import SlotPool
broken = FAULTS["pool-occupy-toggles"].make
leaky = FAULTS["pool-free-unchecked"].make
"""


@pytest.fixture
def project(pytester):
    pytester.makepyfile(mypool=MANAGERS)
    pytester.syspathinsert()
    return pytester


@pytest.fixture
def suite(project):
    """A project with one test that passes and one that fails, in a directory of its own."""
    tests = project.mkdir("tests")
    tests.joinpath("test_own.py").write_text("def test_holds(): pass\ndef test_fails(): assert 0\n")
    return project


LEAKY, BROKEN = "kvlockstep::slot_pool=mypool:leaky", "kvlockstep::slot_pool=mypool:broken"
BOTH = "--kvlockstep-target=slot_pool=mypool:leaky", "--kvlockstep-target=slot_pool=mypool:broken"


def collected(project, *arguments):
    """The ids that pytest collects, as it prints them."""
    result = project.runpytest_inprocess("--collect-only", "-q", *arguments)
    return [line for line in result.outlines if "::" in line]


def test_target_option_adds_a_test(project):
    result = project.runpytest_inprocess("--kvlockstep-target", "slot_pool=mypool:SlotPool")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK


def test_target_option_takes_a_file(project):
    project.mkdir("my-dir").joinpath("my_file.py").write_text(MANAGERS)
    result = project.runpytest_inprocess("--kvlockstep-target", "slot_pool=my-dir/my_file.py:SlotPool")
    result.assert_outcomes(passed=1)


def test_the_short_summary_begins_with_the_law(project, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    project.makepyfile(
        test_it="import kvlockstep, mypool\n\ndef test_it():\n    kvlockstep.check(mypool.broken, contract='slot_pool')"
    )
    result = project.runpytest_inprocess("--kvlockstep-target", "slot_pool=mypool:broken")
    result.stdout.fnmatch_lines(["FAILED kvlockstep::slot_pool=mypool:broken - no_aliasing: *"])
    result = project.runpytest_inprocess("test_it.py")
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_it - kvlockstep.CheckFailed: no_aliasing: *"])


def test_failing_target_shows_the_failure_page(project):
    result = project.runpytest_inprocess("--kvlockstep-target", "slot_pool=mypool:broken")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*slot_pool on mypool:broken - VIOLATED no_aliasing*", "*replay: kvlockstep replay*"])


def test_targets_are_collected_beside_tests_that_lie_elsewhere(suite):
    own = ["tests/test_own.py::test_holds", "tests/test_own.py::test_fails"]
    assert collected(suite, *BOTH, "tests/") == [*own, LEAKY, BROKEN]
    assert collected(suite, *BOTH, BOTH[0], own[0]) == [own[0], LEAKY, BROKEN]


def test_an_id_that_pytest_printed_selects_its_target(suite):
    assert collected(suite, *BOTH, LEAKY) == [LEAKY]
    assert collected(suite, LEAKY, "tests/test_own.py::test_holds") == ["tests/test_own.py::test_holds", LEAKY]
    result = suite.runpytest_inprocess(BROKEN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"FAILED {BROKEN} - *"])


def test_expressions_and_deselection_know_targets(suite):
    assert collected(suite, *BOTH, "tests", "-k", "kvlockstep and broken") == [BROKEN]
    assert collected(suite, *BOTH, "tests", "-k", "not kvlockstep and holds") == ["tests/test_own.py::test_holds"]
    assert collected(suite, *BOTH, "tests", "--deselect", BROKEN, "--deselect", "tests/test_own.py") == [LEAKY]


@pytest.mark.parametrize("file", ["mypool.py", "a dir[1]/pool[x].py"])
def test_last_failed_plays_a_failed_target_again(suite, file):
    path = suite.path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(MANAGERS)
    options = BOTH[0], f"--kvlockstep-target=slot_pool={file}:broken"
    suite.runpytest_inprocess(*options, "-k", "kvlockstep and broken").assert_outcomes(failed=1, deselected=3)
    result = suite.runpytest_inprocess(*options, "--last-failed")
    result.assert_outcomes(failed=1, deselected=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (again,) = collected(suite, *options, "--last-failed")
    suite.runpytest_inprocess(again).assert_outcomes(failed=1)


def test_junit_of_pytest_names_class_and_target(suite):
    suite.runpytest_inprocess("--junitxml=junit.xml", BROKEN)
    (case,) = ElementTree.parse(suite.path / "junit.xml").iter("testcase")
    assert (case.get("classname"), case.get("name")) == ("kvlockstep", "slot_pool=mypool:broken")
    assert "VIOLATED no_aliasing" in case.find("failure").text


def test_workers_of_xdist_share_the_targets(suite):
    pytest.importorskip("xdist")
    suite.runpytest_subprocess("-n", "2", *BOTH, "tests").assert_outcomes(passed=1, failed=3)
    suite.runpytest_subprocess("-n", "1", BROKEN).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--kvlockstep-target", "slot_pool"],
            "--kvlockstep-target 'slot_pool': give CONTRACT=MODULE:FACTORY or CONTRACT=FILE.py:FACTORY",
        ),
        (["--kvlockstep-target", "slots=mypool:SlotPool"], "unknown contract 'slots'"),
        (["kvlockstep::mypool"], "kvlockstep::mypool: give CONTRACT=MODULE:FACTORY or CONTRACT=FILE.py:FACTORY"),
        (["kvlockstep::slot_pool=mypool:Nothing"], "module mypool has no 'Nothing'"),
        (["--kvlockstep-profile", "slow"], "unknown profile 'slow'; known: quick, ci, deep"),
    ],
)
def test_bad_option(project, arguments, message):
    result = project.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = (line for line in result.stderr.lines if line.strip())
    assert line.startswith("ERROR: ")
    assert message in line


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
    shown = ["*VIOLATED no_aliasing at step 2 of 2*", "*replay: kvlockstep replay *.jsonl --target *"]
    result.stdout.fnmatch_lines(shown)
    result.stdout.no_re_match_line(r".*\.py:\d+: .*")
    assert len(list(project.path.glob(".kvlockstep/failures/*.jsonl"))) == 1


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
