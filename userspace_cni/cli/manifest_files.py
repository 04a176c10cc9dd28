"""Reads files with Kubernetes objects, CNI configurations or a libvirt domain into documents that can be judged.

The files are not trusted: YAML is read with the safe loader, and aliases and nesting are bounded. A file that cannot be read is a
finding and not a failure. Only a file that does not exist, or one that may have no end, ends the command.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import click
import yaml

from kubevirt.lint.linted_documents import ManifestDocument
from userspace_cni.base.findings import Finding
from userspace_cni.pod.strict_json import JsonReader, once

FILE_MAX: Final = 8 << 20
"""Bytes of a file at most: enough for all VMs of a large cluster."""
_DEEPEST: Final = 100
_NODES_MAX: Final = 1_000_000
"""Values of a document at most, with each alias counted as everything to which it refers."""
MANIFESTS: Final = (".yaml", ".yml", ".json", ".xml")
NETWORKS: Final = (".yaml", ".yml", ".json", ".conf", ".conflist")
CONFIGURATIONS: Final = (".conf", ".conflist")
"""Suffixes of files that runtimes read only as JSON."""
_REMEDY: Final = "look at the file: it must be YAML, JSON or the XML of a libvirt domain"
_RENDER: Final = "render it first, as `helm template` does, and give what comes out (- for stdin)"
_TEMPLATE: Final = re.compile(r"\{\{.{1,200}?\}\}|\{%.{1,200}?%\}")
"""An expression of a Helm, Go or Jinja template."""
_OPEN_ALREADY: Final = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")
"""Paths that a shell gives for `<(command)`: a pipe, which has an end."""
_MERGE: Final = "tag:yaml.org,2002:merge"
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Unreadable(Exception):
    """Why a file is no document, and what to do about it."""

    def __init__(self, message: str, remedy: str = _REMEDY) -> None:
        super().__init__(message)
        self.remedy = remedy


def files_of(paths: tuple[str, ...], suffixes: tuple[str, ...] = MANIFESTS) -> list[str]:
    """The files of these paths, each once: for a directory the files in it, at any depth, with one of the suffixes.

    Hidden directories (.git, the versions of a mounted ConfigMap) and links to directories are not entered. Raises UsageError
    for a directory that has no such file, or one that cannot be listed.
    """
    found: dict[str, str] = {}
    for path in paths:
        inside = [path]
        if path != "-" and Path(path).is_dir():
            inside = list(_below_directory(path, suffixes))
            if not inside:
                *most, last = (f"*{suffix}" for suffix in suffixes)
                raise click.UsageError(f"directory {path} has no file {', '.join(most)} or {last}")
        for each in inside:
            found.setdefault(each if each == "-" else os.path.realpath(each), each)
    return list(found.values())


def _below_directory(path: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise click.UsageError(f"directory {error.filename} cannot be listed: {error.strerror}") from error

    for directory, below, names in os.walk(path, onerror=refuse):
        below[:] = sorted(name for name in below if not name.startswith("."))
        files = (Path(directory, name) for name in sorted(names))
        yield from (str(each) for each in files if each.suffix in suffixes and each.is_file())


def read_file(path: str) -> tuple[list[ManifestDocument], list[Finding]]:
    """The documents of a file, "-" for stdin; a finding when it cannot be read. Raises UsageError as `read_text` does."""
    name = name_of(path)
    try:
        return list(_documents(name, read_text(path))), []
    except Unreadable as error:
        return [], [Finding("bad-input", "error", name, str(error), error.remedy)]


def name_of(path: str) -> str:
    """The name of a file in messages."""
    return "stdin" if path == "-" else path


def read_text(path: str) -> str:
    """The text of a file, "-" for stdin. Raises UsageError when it cannot be opened, Unreadable when it is no text or too large.

    Named pipes and devices are refused, because they may have no end. A pipe that is open already is read.
    """
    name = name_of(path)
    try:
        if path != "-" and not path.startswith(_OPEN_ALREADY) and not stat.S_ISREG(Path(path).stat().st_mode):
            raise click.UsageError(f"{name} is not a regular file: give what it has on stdin, as -")
        with click.open_file(path, "rb") as file:
            return _text(file)
    except OSError as error:
        raise click.UsageError(f"file {name} cannot be read: {error.strerror}") from error


def _text(file: IO[bytes]) -> str:
    raw = file.read(FILE_MAX + 1)
    if len(raw) > FILE_MAX:
        raise Unreadable(f"it has more than {FILE_MAX >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8: {error.reason} at byte {error.start}") from error


def _documents(name: str, text: str) -> Iterator[ManifestDocument]:
    if text.lstrip().startswith("<"):
        yield ManifestDocument(name, text)
        return
    try:
        contents = [JsonReader(once).read(text)]
    except ValueError:  # JSON is YAML too, and the YAML reader names the lines of a key that is given twice
        contents = [content for content in _yaml(text) if content is not None]
    if not contents:
        raise Unreadable("there is nothing in it")
    for content in contents:
        if isinstance(content, str):
            raise Unreadable(f"it is a piece of text: {content[:40]!r}")
        yield ManifestDocument(name, content)


def _yaml(text: str) -> Iterator[Any]:
    """Each document of the text. Raises Unreadable."""
    try:
        _require_shallow(text)
        loader = _LOADER(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                _require_finite(node)
                _require_once(node)
                yield loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        if template := _TEMPLATE.search(text):
            raise Unreadable(f"it is a template and no document yet: it has {template[0][:60]}", _RENDER) from error
        raise Unreadable(f"it is not YAML: {' '.join(str(error).split())[:200]}") from error


def _require_shallow(text: str) -> None:
    """Raise Unreadable for nesting so deep that composing it would end the process. Reading events does not nest."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise Unreadable(f"it is nested deeper than {_DEEPEST}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _require_finite(node: yaml.Node) -> None:
    """Raise Unreadable for a document whose aliases make it endless or too large."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known is None:
            sizes[id(node)] = _NODES_MAX + 1  # for an alias to a value that contains it
            known = 1 + sum(map(size, _below(node)))
            sizes[id(node)] = known
        if known > _NODES_MAX:
            raise Unreadable(f"with its aliases it has more than {_NODES_MAX} values")
        return known

    size(node)


def _require_once(node: yaml.Node) -> None:
    """Raise Unreadable for an object that has a key twice: Python takes the last one, other readers the first or none."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        lines: dict[tuple[str, str], int] = {}
        for key in [key for key, _ in each.value] if isinstance(each, yaml.MappingNode) else []:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if (key.tag, key.value) in lines:
                first = lines[key.tag, key.value]
                where = f"on line {line}" if first == line else f"on lines {first} and {line}"
                raise Unreadable(f"key {key.value[:60]!r} is given twice in one object, {where}", "leave one of the two out")
            lines[key.tag, key.value] = line
        waiting += _below(each)


def _below(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
