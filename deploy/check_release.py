"""Whether the tree can be released: the version, the tag, CHANGELOG, and every file that names the version agree.

    python3 deploy/check_release.py               as CI does: version, CHANGELOG and files; the tag, where the commit has one
    python3 deploy/check_release.py --tag v1.2.3  the same for a tag that is still to be made
    python3 deploy/check_release.py --set 1.2.4   writes the version into all these files, but for CHANGELOG

pyproject.toml has the version. A file that has to name it, as a manifest that names an image, is found
by the form of what it says. Each finding is a line `file:line: what is wrong, and what to do`; the exit code is 1 for any.
It needs Python and git alone, and changes nothing without --set.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = "pyproject.toml"
CHANGES: Final = "CHANGELOG.md"
UNRELEASED: Final = "## Unreleased"
_NUMBER: Final = r"[0-9]+\.[0-9]+\.[0-9]+"
_VERSION: Final = re.compile(rf'^\[project\]\n(?:(?!\[).*\n)*?version = "({_NUMBER}[^"]*)"$', re.MULTILINE)
_HEADING: Final = re.compile(rf"## ({_NUMBER}) - (\S+)(?: \[YANKED\])?")
_FORMS: Final = (
    # an image, a wheel, an archive or a package with its version; an image's tag; the label of an image; Debian's changelog
    re.compile(rf"userspace[-_]cni(?:-(?!dev\b)[a-z]+)*(?::|-|_|==| )v?({_NUMBER})"),
    re.compile(rf"\bnewTag: *[\"']?({_NUMBER})"),
    re.compile(rf"org\.opencontainers\.image\.version=[\"']?({_NUMBER})"),
    re.compile(rf"^userspace-cni \(({_NUMBER})"),
)
_LEFT_OUT: Final = (CHANGES, "tests/")
"""What may name other versions."""


class Named(NamedTuple):
    """A version that a file names: `start` and `end` say where in the file."""

    path: str
    line: int
    version: str
    start: int
    end: int


def find_problems(root: Path, tags: list[str]) -> Iterator[str]:
    """What does not agree in the tree at `root`. `tags`: the tags that the release has, or is to have."""
    version, line = read_version(root)
    if not version:
        yield f'{PROJECT}:1: there is no line `version = "1.2.3"` in [project]: the version is read from it'
        return
    if not re.fullmatch(_NUMBER, version):
        yield f"{PROJECT}:{line}: {version} is not of the form 1.2.3: the versions are semantic, without further parts"
    for tag in tags:
        if tag != f"v{version}":
            yield f"{PROJECT}:{line}: the version is {version}, and the tag {tag}: the tag of this version is v{version}"
    yield from _changes(root, version)
    for named in find_named(root):
        if named.version != version:
            what = f"it names {named.version}, and the version is {version}"
            yield f"{named.path}:{named.line}: {what}: write {version} (deploy/check_release.py --set {version} does)"


def read_version(root: Path) -> tuple[str, int]:
    """The version in pyproject.toml, and its line; "" without one."""
    text = (root / PROJECT).read_text(encoding="utf-8")
    found = _VERSION.search(text)
    return (found[1], _line(text, found.start(1))) if found else ("", 0)


def find_named(root: Path) -> Iterator[Named]:
    """Every place outside of pyproject.toml that names the version of something of this project."""
    argv = ["git", "-C", str(root), "ls-files", "-z"]
    listed = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    for path in sorted(filter(None, listed.split("\0"))):
        if path.startswith(_LEFT_OUT) or not (root / path).is_file() or (root / path).is_symlink():
            continue
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for form in _FORMS:
            for found in re.finditer(form.pattern, text, re.MULTILINE):
                yield Named(path, _line(text, found.start(1)), found[1], *found.span(1))


def set_version(root: Path, version: str) -> list[str]:
    """Write the version into pyproject.toml and wherever it is named; the files that changed."""
    places: dict[str, list[tuple[int, int]]] = {}
    project = _VERSION.search((root / PROJECT).read_text(encoding="utf-8"))
    if project:
        places[PROJECT] = [project.span(1)]
    for named in find_named(root):
        places.setdefault(named.path, []).append((named.start, named.end))
    for path, spans in places.items():
        text = (root / path).read_text(encoding="utf-8")
        for start, end in sorted(set(spans), reverse=True):
            text = text[:start] + version + text[end:]
        (root / path).write_text(text, encoding="utf-8")
    return sorted(places)


def _changes(root: Path, version: str) -> Iterator[str]:
    """What is wrong with the headings of CHANGELOG: Unreleased is the first, the version with its day the next."""
    text = (root / CHANGES).read_text(encoding="utf-8")
    headings = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.startswith("## ")]
    if not headings or headings[0][1] != UNRELEASED:
        number = headings[0][0] if headings else 1
        yield f"{CHANGES}:{number}: the first heading is to be `{UNRELEASED}`, for what comes after this version"
    released = [each for each in headings if each[1] != UNRELEASED]
    number, line = released[0] if released else (headings[-1][0] if headings else 1, "")
    wanted = f"`## {version} - YEAR-MONTH-DAY`"
    found = _HEADING.fullmatch(line)
    if not found or found[1] != version:
        yield f"{CHANGES}:{number}: the first version is {line[3:] or 'missing'}: {wanted} is to come below {UNRELEASED[3:]}"
        return
    try:
        day = dt.date.fromisoformat(found[2])
    except ValueError:
        day = None
    if not day or day.isoformat() != found[2]:
        yield f"{CHANGES}:{number}: {found[2]} is no day: {wanted}"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _tags_here(root: Path) -> list[str]:
    argv = ["git", "-C", str(root), "tag", "--points-at", "HEAD", "--list", "v[0-9]*"]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Check, or write the version; the exit code."""
    parser = argparse.ArgumentParser(description="Check that version, tag, CHANGELOG and files agree.")
    parser.add_argument("--tag", help="the tag that the release is to have, as v1.2.3; else those of the commit")
    parser.add_argument("--set", dest="version", metavar="VERSION", help="write this version into all files that name it")
    options = parser.parse_args(arguments)
    if options.version:
        if not re.fullmatch(_NUMBER, options.version):
            parser.error(f"{options.version!r} is not of the form 1.2.3")
        print(*set_version(root, options.version), sep="\n")
        return 0
    problems = list(find_problems(root, [options.tag] if options.tag else _tags_here(root)))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"check_release: {len(problems)} findings" if problems else f"check_release: {read_version(root)[0]} agrees everywhere")
    return bool(problems)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, subprocess.CalledProcessError) as failed:
        sys.exit(f"check_release: nothing was checked: {failed}")
