"""Parts that the HTML pages share: their templates, and the reader of their JSON."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.models.core.safe_text import safe_text


def render(template: str, **values: Any) -> str:
    """A page from a template of this package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("kvlockstep", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["ticked"] = _ticked
    written = time.strftime("%Y-%m-%d %H:%M")
    page = environment.get_template(template).render(version=version("kvlockstep"), written=written, **values)
    return safe_text(page)


def _ticked(text: str) -> Any:
    """A statement as HTML, with code where it has text between backticks."""
    from markupsafe import Markup, escape  # noqa: PLC0415

    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its other end
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def json_document(path: Path) -> dict[str, Any] | None:
    """A file that is one JSON object and no trace; None for anything else that can be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "kvlockstep_trace" not in document else None
