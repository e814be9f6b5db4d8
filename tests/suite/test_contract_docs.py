"""docs/contracts.md and the tables in other pages say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import DOCS

from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.show.contract_docs import COMMAND, contracts_page, filled_in, main, written_pages


def test_the_pages_are_up_to_date() -> None:
    stale = [page.name for page, text in written_pages(DOCS).items() if not page.exists() or page.read_text() != text]
    assert stale == [], f"write them again: `make docs`, or {COMMAND}"


def test_every_page_of_a_contract_with_traits_has_its_table_and_its_rules() -> None:
    with_traits = [name for name, contract in CONTRACTS.items() if contract.traits]
    for name in with_traits:
        page = (DOCS / f"{name}.md").read_text()
        assert f"<!-- traits of {name}: " in page
        assert f"<!-- rules of {name}: " in page


def test_each_part_of_a_contract_is_on_the_page() -> None:
    page = contracts_page()
    for contract in CONTRACTS.values():
        assert f"## {contract.name}\n\n{contract.about}\n" in page
        for trait in contract.traits.values():
            assert trait.required or f"| `{trait.name}` |" in page
    assert "| `fork(rid: str, child: str) -> Iterable[tuple[int, int]] \\| None` | `can_fork` |" in page


def test_only_what_is_marked_is_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "mine.md"
    page.write_text("Mine.\n\n<!-- rules of kv_manager: stale -->\nNo rules.\n<!-- end -->\n\nAlso mine.\n")
    (tmp_path / "other.md").write_text("Nothing is marked here.\n")
    main([str(tmp_path)])
    assert page.read_text().startswith("Mine.\n\n<!-- rules of kv_manager: written by `python -m ")
    assert "\n1. A step has this order: " in page.read_text()
    assert page.read_text().endswith("<!-- end -->\n\nAlso mine.\n")
    assert capsys.readouterr().out.count("wrote ") == 3, "mine, and two pages that are written whole"
    main([str(tmp_path)])
    assert capsys.readouterr().out == ""
    assert filled_in(page.read_text()) == page.read_text()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="usage, in the repository: python -m"):
        main([str(tmp_path / "none")])
