"""Names that nobody knows: one usage error, which offers the known names that are like them."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = {
    "chek kv_manager": "no command 'chek'; did you mean check?",
    "check kv_manger": "unknown contract 'kv_manger'; did you mean kv_manager",
    "check kv_manager --target blcks": "unknown target 'blcks' for kv_manager; did you mean blocks?",
    "check kv_manager --target fault:kv-fork-nocopy": "did you mean kv-fork-no-copy",
    "check kv_manager --target fault:nothing-like-it": "`kvlockstep list` shows all ",
    "check slot_pool --target fault:kv-fork-no-copy": "for slot_pool: it is one of kv_manager",
    "check slot_pool --target variant:nothing": "unknown target 'variant:nothing' for slot_pool",
    "check kv_manager --profile qick": "unknown profile 'qick'; did you mean quick? known: quick, ci, deep",
    "check kv_manager --driver randm": "unknown driver 'randm'; did you mean random?",
    "check kv_manager --target my_mangers.py:Mine": "there is no file my_mangers.py; did you mean my_managers.py?",
    "check kv_manager --target my_managers.py:Mime": "has no 'Mime'; did you mean Mine?",
    "check kv_manager --target my_managers:Mime": "has no 'Mime'; did you mean Mine?",
    "fuzz slot_pool --driver randm": "unknown driver 'randm' for fuzz; did you mean random?",
    "explain write_isolatoin": "did you mean write_isolation",
    "score --fault kv-fork-nocopy": "did you mean kv-fork-no-copy",
    "init --contract kv_tir": "did you mean kv_tier",
    "prove lenght": "unknown proof 'lenght'; ",
    "bench driver": "unknown bench 'driver'; did you mean drivers?",
}


@pytest.mark.parametrize("arguments", CASES)
def test_a_name_like_it_is_offered(run_cli, tmp_path: Path, arguments: str) -> None:
    (tmp_path / "my_managers.py").write_text("class Mine: pass\n")
    code, _, said = run_cli(*arguments.split())
    assert code == 2
    assert CASES[arguments] in said
    assert said.count("\n") == 1


def test_the_configuration(run_cli, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kvlockstep]\nprofil = "quick"\n')
    code, _, said = run_cli("check")
    assert code == 2
    assert "unknown keys in [tool.kvlockstep]: profil; did you mean profile?" in said
