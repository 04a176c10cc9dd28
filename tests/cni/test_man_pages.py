"""The manual pages: one for each command and one for the settings, which groff and mandoc take without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.lab.commands import runnable, walk
from tests.lab.pages import ROOT
from userspace_cni.base.settings import TABLE, TABLES_OF_FILE
from userspace_cni.cli.manual import write_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages, by their names."""
    return {path.name: path for path in write_pages(tmp_path_factory.mktemp("man"))}


def read(page: Path, width: int = 200) -> str:
    """The page as man shows it; man and mandoc must have nothing to say of it."""
    environ = {**os.environ, "MANWIDTH": str(width), "LC_ALL": "C.UTF-8", "MANROFFSEQ": ""}
    shown = subprocess.run(
        ["man", "-P", "cat", "--warnings", "-l", str(page)], env=environ, capture_output=True, text=True, check=True
    )
    assert shown.stderr == ""
    lint = subprocess.run(["mandoc", "-Tlint", "-W", "warning", str(page)], capture_output=True, text=True, check=False)
    assert (lint.returncode, lint.stdout) == (0, "")
    return re.sub(".\b", "", shown.stdout)


def test_each_command_has_a_page(pages: dict[str, Path]) -> None:
    """Groups, too, and the program; and there is one for the settings."""
    named = {f"userspace-cni-{words.replace(' ', '-')}.1" for words, _, _ in walk()}
    assert set(pages) == named | {"userspace-cni.1", "userspace-cni-settings.5"}


def test_what_a_page_has(pages: dict[str, Path]) -> None:
    """Every option, the whole examples, and the usage; in lines of any width no word of them is cut."""
    for words, command in runnable().items():
        page = pages[f"userspace-cni-{words.replace(' ', '-')}.1"]
        text, narrow = read(page), read(page, 60)
        options = [name for each in command.params if isinstance(each, click.Option) for name in each.opts]
        assert [name for name in [*options, "--help"] if name not in narrow] == [], words
        assert [line for line in command.examples if f" {line}\n" not in text] == [], words
        assert f"userspace-cni {words}" in text


def test_the_page_of_the_program(pages: dict[str, Path]) -> None:
    """It has the commands by purpose, each with its page, and the exit codes."""
    text = read(pages["userspace-cni.1"])
    assert "Find out what is wrong" in text
    assert "userspace-cni-list(1)" in text
    assert "130" in text


def test_the_page_of_settings(pages: dict[str, Path]) -> None:
    """It has each key, with its variable, and the administrator's tables."""
    text = read(pages["userspace-cni-settings.5"])
    for key in TABLE:
        assert f"{key} = " in text
    assert "USERSPACE_CNI_STATE_DIR" in text
    for key in TABLES_OF_FILE:
        assert f"[[{key}]]" in text


def test_pages_are_the_same_again(tmp_path: Path) -> None:
    """With SOURCE_DATE_EPOCH, as packagers set it, the program that makes them makes the same pages."""
    made = []
    for name in ("a", "b"):
        argv = [sys.executable, "-m", "userspace_cni.cli.manual", str(tmp_path / name)]
        subprocess.run(argv, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, cwd=ROOT, check=True, capture_output=True)
        made.append({path.name: path.read_text() for path in (tmp_path / name).rglob("*.[15]")})
    assert made[0] == made[1]
    assert " 2023-11-14 " in made[0]["userspace-cni.1"]
