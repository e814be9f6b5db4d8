"""Targets that exit, hang, fail at import, do not fit or return something else: one usage error that says where."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from kvlockstep.commands.cli import cli, main
from kvlockstep.core.errors import UsageError
from kvlockstep.targets import trying
from kvlockstep.targets.registry import from_factory, resolve

MANAGERS = """
import abc, functools, sys, time
from kvlockstep.reference.kv_manager import KVManager

def exits(blocks, block_size): sys.exit(0)
def odd(blocks, block_size): raise BaseException("odd")
class NoText(Exception):
    def __str__(self): raise ValueError
def textless(blocks, block_size): raise NoText
def far(blocks, block_size): return functools.reduce(int, [blocks, "x"])
def hangs(blocks, block_size):
    while True: pass
class SlowTrait(KVManager):
    @property
    def can_fork(self): time.sleep(1000)
class BadTrait(KVManager):
    @property
    def can_fork(self): sys.exit(0)
def none(blocks, block_size): pass
def itself(blocks, block_size): return KVManager
def generator(blocks, block_size): yield KVManager(blocks, block_size)
async def coroutine(blocks, block_size): return KVManager(blocks, block_size)
def pair(blocks, block_size): return KVManager(blocks, block_size), blocks
def no_argument(): pass
def one(blocks): pass
def three(blocks, block_size, device): pass
def named(*, blocks, block_size): pass
partial = functools.partial(three, dtype=int)
class Plain: pass
class Abstract(abc.ABC):
    @abc.abstractmethod
    def admit(self): pass
    def __init__(self, blocks, block_size): pass
class Own:
    def __init__(self, blocks): pass
class Callable:
    def __call__(self, blocks): pass
instance = Callable()
def inner_type_error(blocks, block_size): one(blocks, block_size)
"""


def line(text: str) -> int:
    """Where it stands in the module."""
    return next(n for n, source in enumerate(MANAGERS.splitlines(), 1) if text in source)


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """The folder of modules, to be added to."""
    (tmp_path / "bad_managers.py").write_text(MANAGERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(factory: str) -> str:
    with pytest.raises(UsageError) as caught:
        resolve("kv_manager", f"bad_managers:{factory}")
    assert f"target 'bad_managers:{factory}'" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("factory", "message", "where"),
    [
        ("exits", "(blocks, block_size) with (8, 4), raised SystemExit: 0", "def exits"),
        ("odd", "raised BaseException: odd", "def odd"),
        ("textless", "raised NoText", "def textless"),
        ("far", "raised TypeError", "def far"),
        ("BadTrait", "reading the attributes of what its factory made raised SystemExit: 0", "exit(0)"),
        ("inner_type_error", "raised TypeError: one() takes 1", "def inner_type_error"),
    ],
)
def test_what_it_raises_is_told_with_its_place(bad, factory, message, where):
    text = refused(factory)
    assert message in text
    at = [n for n, source in enumerate(MANAGERS.splitlines(), 1) if where in source]
    assert any(text.endswith(f"({bad / 'bad_managers.py'}:{n})") for n in at), text


@pytest.mark.parametrize(
    ("factory", "where"),
    [
        ("no_argument", "def no_argument"),
        ("one", "def one"),
        ("three", "def three"),
        ("named", "def named"),
        ("partial", "def three"),
        ("Plain", "class Plain"),
        ("Own", "def __init__(self, blocks):"),
        ("instance", "def __call__"),
    ],
)
def test_a_factory_with_other_parameters(bad, factory, where):
    text = refused(factory)
    assert "called as make(blocks, block_size) with (8, 4), raised TypeError: " in text
    assert f"({bad / 'bad_managers.py'}:{line(where)})" in text
    assert "functools.partial" in text
    assert "kvlockstep/" not in text


def test_a_class_that_is_abstract(bad):
    text = refused("Abstract")
    assert "abstract" in text
    assert text.endswith(f"({bad / 'bad_managers.py'}:{line('def __init__(self, blocks, block_size)')})")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("none", "returned None"),
        ("itself", "returned the class KVManager, not an instance of it"),
        ("generator", "returned a generator, since it has a yield"),
        ("coroutine", "returned a coroutine, since it is async"),
        ("pair", "returned (<kvlockstep.r"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_factory_that_returns_something_else(bad, factory, message):
    text = refused(factory)
    assert f"its factory {message}" in text
    assert text.endswith("make(blocks, block_size) has to return a kv_manager")


@pytest.mark.parametrize(
    ("factory", "what", "where"),
    [
        ("hangs", "its factory, called as make(blocks, block_size) with (8, 4),", "while True"),
        ("SlowTrait", "reading the attributes of what its factory made", "sleep(1000)"),
    ],
)
def test_what_does_not_return_is_cut_off(bad, monkeypatch, factory, what, where):
    monkeypatch.setattr(trying, "LIMIT_SECONDS", 0.5)
    text = refused(factory)
    assert text.endswith(f"{what} did not return within 0.5 s ({bad / 'bad_managers.py'}:{line(where)})")


@pytest.mark.parametrize(
    ("source", "message", "at"),
    [
        ("import sys\nsys.exit(0)", "SystemExit: 0", 2),
        ("import sys\nsys.exit(3)", "SystemExit: 3", 2),
        ("raise BaseException('odd')", "BaseException: odd", 1),
        (
            "class A(type): pass\nclass B(metaclass=A): pass\nclass C(B, metaclass=type('D', (type,), {})): pass",
            "TypeError: metaclass conflict",
            3,
        ),
        ("import json\n\njson.loads('[')", "JSONDecodeError", 3),
        ("def make(blocks)\n    pass", "SyntaxError: expected ':'", 1),
        ("import nonexistent_engine", "ModuleNotFoundError: No module named 'nonexistent_engine'", 1),
    ],
)
def test_an_import_that_fails_is_told_with_its_line(bad, run_cli, source, message, at):
    (bad / "bad_import.py").write_text(source)
    code, out, err = run_cli("check", "kv_manager", "--target", "bad_import:make")
    assert code == 2
    assert f"cannot import target 'bad_import:make': {message}" in err
    assert f"({bad / 'bad_import.py'}:{at})" in err
    assert not out


def test_an_attribute_that_exits(bad):
    (bad / "bad_lazy.py").write_text("import sys\ndef __getattr__(name): sys.exit(0)")
    with pytest.raises(UsageError, match=r"SystemExit: 0 \(.*bad_lazy.py:2\)"):
        resolve("kv_manager", "bad_lazy:make")


@pytest.mark.parametrize("spec", ["bad_managers:", ":make", ":", ".bad_managers:one", "some/where:make"])
def test_what_is_no_name_of_a_target(bad, spec):
    with pytest.raises(UsageError, match=r"give module:factory or file\.py:factory"):
        resolve("kv_manager", spec)


def test_a_name_without_a_colon(run_cli):
    _, _, err = run_cli("check", "kv_manager", "--target", "managers")
    assert "give module:factory or file.py:factory" in err


def test_a_factory_given_in_python(bad):
    with pytest.raises(UsageError, match="raised SystemExit: 3"):
        from_factory("kv_manager", lambda blocks, block_size: sys.exit(3))


def test_an_interrupt_that_a_factory_raises_is_its_error():
    def interrupted(blocks, block_size):
        raise KeyboardInterrupt

    with pytest.raises(UsageError, match="raised KeyboardInterrupt"):
        from_factory("kv_manager", interrupted)


@pytest.mark.parametrize("end", ["os._exit(0)", "ctypes.string_at(0)"])
def test_a_factory_that_ends_its_process_is_a_usage_error(end):
    def ends(blocks, block_size):
        eval(end, {"os": os, "ctypes": ctypes})

    with pytest.raises(UsageError, match=r"the process .* while an instance was made"):
        from_factory("kv_manager", ends)


def test_whatever_else_is_raised_is_an_internal_error(monkeypatch, capsys):
    def odd(**_arguments):
        raise BaseException("odd")

    monkeypatch.setattr(cli, "main", odd)
    with pytest.raises(SystemExit) as end:
        main(["list"])
    assert end.value.code == 4
    assert "internal error" in capsys.readouterr().err
