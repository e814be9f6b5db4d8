"""Lines of a Markdown table."""

from __future__ import annotations


def table_head(*names: str) -> list[str]:
    """The two lines that begin a table with these columns."""
    return [table_row(*names), table_row(*("---" for _ in names))]


def table_row(*cells: str) -> str:
    """One row; a bar in a cell does not end the cell."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
