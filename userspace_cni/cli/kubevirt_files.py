"""Files with objects of Kubernetes, or with a libvirt domain, read into documents that can be judged.

They are anybody's: YAML is read with the safe loader and no aliases that would grow beyond measure, nothing is too deep for the
parser, and a file that can not be read is a finding and not a failure. Only a file that is not there at all ends the command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import click
import yaml

from kubevirt.findings import Finding
from kubevirt.lint.documents import Document

FILE_MAX: Final = 8 << 20
"""Bytes of a file: all VMs of a large cluster."""
_DEEPEST: Final = 100
_NODES_MAX: Final = 1_000_000
"""Values of a document with each alias counted as all that it stands for."""
_SUFFIXES: Final = (".yaml", ".yml", ".json", ".xml")
_REMEDY: Final = "look at the file: it must be YAML, JSON or the XML of a libvirt domain"
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Unreadable(Exception):
    """Why a file is no document."""


def files_of(paths: tuple[str, ...]) -> list[str]:
    """The files that are meant: of a directory those in it with a suffix of a document. Raises UsageError for one without any."""
    found = []
    for path in paths:
        if path != "-" and Path(path).is_dir():
            inside = sorted(str(each) for each in Path(path).iterdir() if each.suffix in _SUFFIXES and each.is_file())
            if not inside:
                raise click.UsageError(f"directory {path} has no file *.yaml, *.yml, *.json or *.xml")
            found += inside
        else:
            found.append(path)
    return found


def read_file(path: str) -> tuple[list[Document], list[Finding]]:
    """The documents of a file, "-" for stdin; a finding when it can not be read. Raises UsageError when it can not be opened."""
    name = "stdin" if path == "-" else path
    try:
        with click.open_file(path, "rb") as file:
            return list(_documents(name, _text(file))), []
    except OSError as error:
        raise click.UsageError(f"file {name} can not be read: {error.strerror}") from error
    except Unreadable as error:
        return [], [Finding("bad-input", "error", name, str(error), _REMEDY)]


def _text(file: IO[bytes]) -> str:
    raw = file.read(FILE_MAX + 1)
    if len(raw) > FILE_MAX:
        raise Unreadable(f"it has more than {FILE_MAX >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8: {error.reason} at byte {error.start}") from error


def _documents(name: str, text: str) -> Iterator[Document]:
    if text.lstrip().startswith("<"):
        yield Document(name, text)
        return
    try:
        contents = [json.loads(text)]
    except (ValueError, RecursionError):
        contents = [content for content in _yaml(text) if content is not None]
    if not contents:
        raise Unreadable("there is nothing in it")
    for content in contents:
        if isinstance(content, str):
            raise Unreadable(f"it is a piece of text: {content[:40]!r}")
        yield Document(name, content)


def _yaml(text: str) -> Iterator[Any]:
    """Each document of the text. Raises Unreadable."""
    try:
        _require_shallow(text)
        loader = _LOADER(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                _require_finite(node)
                yield loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise Unreadable(f"it is not YAML: {' '.join(str(error).split())[:200]}") from error


def _require_shallow(text: str) -> None:
    """Raise Unreadable for nesting on which the parser would end the process. Events are read without any."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise Unreadable(f"it is nested deeper than {_DEEPEST}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _require_finite(node: yaml.Node) -> None:
    """Raise Unreadable for a document whose aliases make it endless, or as good as that."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known is None:
            sizes[id(node)] = _NODES_MAX + 1  # for an alias to what it is in
            known = 1 + sum(map(size, _below(node)))
            sizes[id(node)] = known
        if known > _NODES_MAX:
            raise Unreadable(f"with its aliases it has more than {_NODES_MAX} values")
        return known

    size(node)


def _below(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
