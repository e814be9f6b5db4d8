"""A failure page as an SVG picture, for a README or an issue: readable on light and on dark backgrounds."""

from __future__ import annotations

import io
from html import escape

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.trace import Trace

WIDEST = 110
# Around the text, in the units of the picture.
MARGIN = 12
# Background, foreground, then black, red, green, yellow, blue, magenta, cyan and white, as terminals count them.
LIGHT = TerminalTheme(
    (255, 255, 255),
    (36, 41, 47),
    [
        *((36, 41, 47), (190, 20, 30), (17, 99, 41), (130, 80, 0)),
        *((9, 105, 218), (130, 80, 223), (27, 124, 131), (87, 96, 106)),
    ],
)
DARK = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [
        *((230, 237, 243), (255, 123, 114), (126, 231, 135), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (230, 237, 243)),
    ],
)
# {styles} are the classes of every colour; the media query replaces them where the reader's page is dark.
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 WIDTH HEIGHT" role="img">
<title>TITLE</title>
<style>
text {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: {char_height}px; }}
.back {{ fill: #ffffff; stroke: #d0d7de; }}
{styles}
@media (prefers-color-scheme: dark) {{ .back {{ fill: #0d1117; stroke: #444c56; }}
DARK_STYLES
}}
</style>
<defs>{lines}</defs>
<rect class="back" width="100%" height="100%" rx="6"/>
<g transform="translate(MARGIN, MARGIN)">{backgrounds}<g>{matrix}</g></g>
</svg>
"""


def finding_svg(trace: Trace) -> str:
    """The failure page with the violated law, the failing step and its reason in colour."""
    page = failure_page(trace)
    text = Text(page)
    text.highlight_regex(r"VIOLATED \w+", "bold red")
    text.highlight_regex(rf"(?m)^ +{len(trace.ops)}  .*$", "bold")
    text.highlight_words([trace.message], "red")
    text.highlight_regex(r"(?m)^law .*$", "magenta")
    text.highlight_regex(r"(?m)^ +\d+  .*?(?P<blue>-> .*|avail \d+)$")
    console = Console(
        record=True, file=io.StringIO(), width=min(WIDEST, max(map(len, page.splitlines())) + 1), force_terminal=True
    )
    console.print(text)
    dark = console.export_svg(theme=DARK, clear=False, code_format="{styles}", unique_id="kv")
    sizes = console.export_svg(clear=False, code_format="{terminal_width} {terminal_height}").split()
    width, height = (f"{float(size) + 2 * MARGIN:.0f}" for size in sizes)
    form = FORMAT.replace("WIDTH", width).replace("HEIGHT", height).replace("MARGIN", str(MARGIN))
    form = form.replace("DARK_STYLES", _literal(dark))
    form = form.replace("TITLE", _literal(escape(page.partition("\n")[0])))
    return console.export_svg(theme=LIGHT, code_format=form, unique_id="kv")


def _literal(text: str) -> str:
    """The text as a format string that yields it."""
    return text.replace("{", "{{").replace("}", "}}")
