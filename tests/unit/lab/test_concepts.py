"""docs/concepts.md: its pictures and its glossary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from tests.lab.pages import ROOT, headings, prose

PAGE: Final = ROOT / "docs" / "concepts.md"
PICTURES: Final = [PAGE.parent / each for each in re.findall(r"!\[[^]]+\]\((pictures/[\w-]+\.svg)\)", prose(PAGE))]
_SVG: Final = "{http://www.w3.org/2000/svg}"


def test_there_are_pictures_of_the_four_subjects() -> None:
    """An ADD, a frame, who writes what, and what survives."""
    assert len(PICTURES) == 4


@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: str(each.name))
def test_a_picture_can_be_read(picture: Path) -> None:
    """It has a title and a description for those who do not see it, colours for light and dark, and fetches nothing."""
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    named = (root.get("aria-labelledby") or "").split()
    assert [each.tag for each in root if each.get("id") in named] == [f"{_SVG}title", f"{_SVG}desc"]
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    classes = {name for each in root.iter() for name in (each.get("class") or "").split()}
    assert {name for name in classes if f".{name} " not in text} == set()
    assert len(text) < 8000


def test_the_glossary_is_in_order() -> None:
    """Its terms are headings, in the order of the alphabet, each with a text."""
    _, _, glossary = PAGE.read_text(encoding="utf-8").partition("\n## Glossary\n")
    terms = re.findall(r"^#### (.+)\n\n(?=[A-Z`])", glossary, re.MULTILINE)
    assert len(terms) > 50
    assert terms == sorted(terms, key=str.lower)
    assert len(re.findall(r"^####", glossary, re.MULTILINE)) == len(terms)
    assert {"attachment", "agent", "spool", "pmd", "hugepages", "nad", "multus", "ovsdb"} <= set(headings(PAGE))
