"""Documentation written from the code: docs/contracts.md, docs/divergences.md, and tables in other pages of docs/.

`python -m kvlockstep.show.contract_docs docs` writes it again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from kvlockstep.core.markdown import table_head, table_row
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.show.divergences_doc import divergences_page
from kvlockstep.show.explanations import explain
from kvlockstep.targets.registry import built_in
from kvlockstep.targets.signatures import literal

COMMAND = "python -m kvlockstep.show.contract_docs docs"
PAGE, DIVERGENCES = "contracts.md", "divergences.md"
BEGIN, END = "<!-- {part} of {contract}: written by `" + COMMAND + "` -->", "<!-- end -->"
SECTION = re.compile(r"<!-- (?P<part>\w+) of (?P<contract>\w+): .*? -->\n.*?<!-- end -->", re.DOTALL)
WIDTH = 100
HEAD = f"""# Contracts

Written from the code by `{COMMAND}`.
`kvlockstep explain NAME` says more of each name on this page: why a law matters, the bugs and faults behind it, and
where it is stated. Adapters import every type from one module, `kvlockstep.reference.contracts`.

"""


def contracts_page() -> str:
    """Every contract with its methods, traits, laws, goals and rules, as Markdown."""
    summary = _table(("contract", "what it is"), ((f"[`{c.name}`](#{c.name})", c.about) for c in CONTRACTS.values()))
    return HEAD + "\n\n".join([summary, *map(_contract, CONTRACTS)]) + "\n"


def traits_table(contract: str) -> str:
    """The traits that have a default, as a Markdown table."""
    traits = [trait for trait in CONTRACTS[contract].traits.values() if not trait.required]
    rows = ((f"`{trait.name}`", f"`{literal(trait.default)}`", trait.about) for trait in traits)
    return _table(("trait", "default", "meaning"), rows)


def rules_list(contract: str) -> str:
    """The rules as a numbered Markdown list."""
    rules = []
    for number, text in CONTRACTS[contract].rules.items():
        hanging = " " * len(f"{number}. ")
        rules.append("\n".join(wrap(f"{number}. {text}", WIDTH, subsequent_indent=hanging, break_on_hyphens=False)))
    return "\n".join(rules)


PARTS = {"traits": traits_table, "rules": rules_list}


def filled_in(page: str) -> str:
    """A page with each section that `BEGIN` and `END` enclose written again."""

    def written(section: re.Match[str]) -> str:
        part, contract = section["part"], section["contract"]
        return f"{BEGIN.format(part=part, contract=contract)}\n\n{PARTS[part](contract)}\n\n{END}"

    return SECTION.sub(written, page)


def written_pages(folder: Path) -> dict[Path, str]:
    """Each page of a folder that has something from the code, as it should be."""
    pages = {
        page: filled_in(page.read_text())
        for page in sorted(folder.glob("*.md"))
        if page.name not in (PAGE, DIVERGENCES)
    }
    whole = {folder / PAGE: contracts_page(), folder / DIVERGENCES: divergences_page(COMMAND)}
    return {**whole, **{page: text for page, text in pages.items() if SECTION.search(text)}}


def _contract(name: str) -> str:
    known = explain(name)
    # Targets that other installed packages register are left out: they are not the same everywhere.
    parts = [f"## {name}", known["statement"], f"Factory: `{known['factory']}`. Targets: {_names(built_in(name))}."]
    methods = [(f"`{signature}`", "") for signature in known["methods"]]
    methods += [(f"`{signature}`", f"`{trait}`") for signature, trait in known["optional"].items()]
    # A column that no contract but those with traits fills.
    if known["optional"]:
        parts += ["### Methods", _table(("method", "only with the trait"), methods)]
    else:
        parts += ["### Methods", "\n".join(f"- {signature}" for signature, _ in methods)]
    if known["traits"]:
        parts += ["### Traits", traits_table(name)]
    parts += ["### Laws", _table(("law", "statement"), _code(known["laws"]))]
    parts += ["### Goals", "A run is conclusive only if each of these happens at least once."]
    parts += [_table(("goal", "statement"), _code(known["goals"]))]
    if known["rules"]:
        parts += ["### Rules", rules_list(name)]
    return "\n\n".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _code(rows: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"`{name}`", text) for name, text in rows.items())


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join([*table_head(*heads), *(table_row(*row) for row in rows)])


def main(arguments: list[str]) -> None:
    """Writes the pages of the folder that is given, and names those that have changed."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        raise SystemExit(f"usage, in the repository: {COMMAND}")
    for page, text in written_pages(Path(arguments[0])).items():
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
            print(f"wrote {page}")


if __name__ == "__main__":
    main(sys.argv[1:])
