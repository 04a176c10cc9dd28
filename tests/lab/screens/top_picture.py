"""Draws docs/pictures/top.svg: the screen of `top`, of a node that there is not.

`python -m tests.lab.screens.top_picture` writes it. The lines are those that a terminal gets; rich makes an SVG of them.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.lab.screens.made_node import made_picture
from userspace_cni.cli.top.top_figures import Line
from userspace_cni.cli.top.top_layout import draw_screen
from userspace_cni.cli.top.top_state import TopState

PICTURE: Final = Path(__file__).resolve().parents[3] / "docs" / "pictures" / "top.svg"
SIZE: Final = (136, 24)
_RED, _GREEN, _YELLOW, _CYAN = (240, 105, 100), (120, 200, 110), (232, 192, 96), (86, 182, 194)
_GROUND, _GREY, _BLUE, _MAGENTA, _TEXT = (24, 26, 31), (92, 99, 112), (97, 175, 239), (198, 120, 221), (220, 223, 228)
_COLOURS: Final = [_GREY, _RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, _TEXT]
_THEME: Final = TerminalTheme(_GROUND, _TEXT, _COLOURS, _COLOURS)
_FORMAT: Final = re.sub(r"@font-face \{\{.*?\n    \}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Without fonts from elsewhere: the reader's own has to do."""
_LOOKS: Final = {"head": "reverse"}


def styled(line: Line) -> Text:
    """A line of the screen as rich has it."""
    text = Text(end="\n", no_wrap=True)
    for piece in line:
        text.append(piece.text, " ".join(_LOOKS.get(word, word) for word in piece.look.split()))
    return text


def draw() -> str:
    """The SVG; the same for the same screen."""
    lines, _ = draw_screen(made_picture(), TopState(), SIZE)
    console = Console(record=True, width=SIZE[0], file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(styled(line), soft_wrap=True)
    svg = console.export_svg(title="userspace-cni top", theme=_THEME, code_format=_FORMAT, unique_id="top")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw())
