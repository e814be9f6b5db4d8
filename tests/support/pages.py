"""Pages of `report` as tests read them."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "input", "line", "polyline", "br"}


PLAIN_SCORE = {
    "caught": 1,
    "total": 2,
    "faults": [
        {
            **{"id": "kv-a", "contract": "kv_manager", "caught": True, "law": "accounting", "driver": "random"},
            **{"steps": 1234, "trace_length": 3, "seconds": 0.5},
        },
        {
            **{"id": "kv-b", "contract": "kv_manager", "caught": False, "law": None, "driver": None},
            **{"steps": None, "trace_length": None, "seconds": 2.0},
        },
    ],
    "clean": [{"contract": "kv_manager", "verdict": "holds"}],
}


class Page(HTMLParser):
    """Tags with their attributes; fails on tags that are not closed in order, and on anything from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.tags.append((tag, values))
        assert tag not in ("link", "img", "base")
        if tag == "iframe":
            Page(values["srcdoc"])
        for name in ("src", "href"):
            assert (values.get(name) or "#").startswith(("#", "data:"))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if name in (attributes.get("class") or "").split()]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
