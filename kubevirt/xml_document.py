"""An XML document as its bytes and where each element is in them, so that an edit leaves every other byte as it was.

A tree that is parsed and written anew loses what this package must keep: quotes, prefixes, comments, CDATA, the order of
attributes, blanks, the XML declaration. So the parser (expat) only finds the elements' offsets, and `edits` splices the bytes.
What a definition never has is refused: document types, entities, processing instructions, any encoding but UTF-8, and documents
so large or deep that reading them would exceed the sidecar's memory limit. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn
from xml.parsers import expat

from kubevirt.sidecar_errors import BadInput

BYTES_MAX: Final = 1 << 20
"""KubeVirt's largest definitions (710 vCPUs, dozens of disks) have some 200 KiB."""
NODES_MAX: Final = 20_000
"""Elements, attributes and declared namespaces: some 5 MB of objects, and twice what a VM with 710 vCPUs and 256 disks has."""
DEPTH_MAX: Final = 256
"""libxml2's own limit, and so libvirt's."""
REMEDY: Final = "look at the definition in virt-launcher's log: another sidecar may have changed it"

_SEPARATOR: Final = "\n"
"""Between namespace and name, as expat reports them: no name and no sane namespace has one."""
_DECODER: Final = "utf-8"
_START_TAG: Final = re.compile(rb"<[^\s/>]++(?:[^\"'>]++|\"[^\"]*+\"|'[^']*+')*+>")
_TAG_NAME: Final = re.compile(rb"[^\s/>]+")
_ATTRIBUTE: Final = re.compile(rb"\s++([^\s=]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')")
_BLANKS: Final = b" \t\r\n"
_NOTHING: Final[Mapping[str, str]] = {}
"""Shared by all elements without attributes, or without namespaces of their own."""


@dataclass(frozen=True)
class WrittenAttribute:
    """One attribute as the bytes have it: `name` with its prefix, where its value is (without the quotes), where it ends."""

    name: str
    value_start: int
    value_end: int
    end: int


@dataclass(slots=True, eq=False)
class Element:
    """One element. Offsets are bytes of the document: [start, end) all of it, [inner_start, inner_end) its content.

    `namespace` is "" for none; `attributes` are decoded, those with a namespace are keyed `namespace\\nname`. Of a self-closing
    element the content is empty and at its end. `prefixes`: namespaces that its start tag declares, by prefix ("" the default).
    """

    namespace: str
    name: str
    attributes: Mapping[str, str]
    prefixes: Mapping[str, str]
    start: int
    inner_start: int
    inner_end: int = -1
    end: int = -1
    empty: bool = False
    children: list[Element] = field(default_factory=list)

    def find_all(self, name: str, namespace: str = "") -> list[Element]:
        return [child for child in self.children if child.name == name and child.namespace == namespace]

    def find(self, name: str, namespace: str = "") -> Element | None:
        """The only child of that name, None when there is none. Raises BadInput when there are several: which one counts?"""
        found = self.find_all(name, namespace)
        if len(found) > 1:
            raise BadInput(
                f"the domain XML has {len(found)} <{name}> elements in one <{self.name}>, at most one is known", REMEDY
            )
        return found[0] if found else None

    def get(self, attribute: str) -> str:
        """Value of an attribute without namespace, "" when it is absent."""
        return self.attributes.get(attribute, "")


@dataclass(frozen=True)
class XmlDocument:
    """A document that was read: its bytes, and its root element."""

    raw: bytes
    root: Element

    def tag(self, element: Element) -> str:
        """An element's name as it is written, with its prefix."""
        found = _TAG_NAME.match(self.raw, element.start + 1)
        return found.group().decode() if found else element.name

    def prefix(self, element: Element) -> str:
        """The prefix with which an element is written, with its colon; "" for none."""
        prefix, colon, _ = self.tag(element).rpartition(":")
        return prefix + colon

    def read_attributes(self, element: Element) -> list[WrittenAttribute]:
        """The attributes of an element's start tag, namespace declarations too, in their order."""
        at, found = self.name_end(element), []
        while attribute := _ATTRIBUTE.match(self.raw, at, element.inner_start):
            at = attribute.end()
            found.append(WrittenAttribute(attribute[1].decode(), attribute.start(2) + 1, attribute.end(2) - 1, at))
        return found

    def name_end(self, element: Element) -> int:
        """Offset behind an element's name in its start tag."""
        return element.start + 1 + len(self.tag(element).encode())

    def space_before(self, end: int, start: int) -> bytes:
        """The blanks before offset `end`, from `start` on."""
        at = end
        while at > start and self.raw[at - 1] in _BLANKS:
            at -= 1
        return self.raw[at:end]

    def text(self, element: Element) -> str:
        """The characters in an element and in what it holds, with references and CDATA resolved and without comments."""
        pieces: list[str] = []
        parser = expat.ParserCreate(_DECODER)
        parser.CharacterDataHandler = pieces.append
        parser.Parse(self.raw[element.start : element.end], True)
        return "".join(pieces)


def read_document(source: str | bytes) -> XmlDocument:
    """Parse a document. Raises BadInput with line and column for what is not well-formed, and for all that is refused above."""
    return _XmlReader(_utf8(source)).read()


def _refuse(what: str) -> NoReturn:
    raise BadInput(f"the domain XML {what}", REMEDY)


def _utf8(source: str | bytes) -> bytes:
    """The document's bytes, if they are UTF-8 and not too many. NUL is the mark of UTF-16, and in no XML."""
    try:
        raw = source.encode() if isinstance(source, str) else source
        raw.decode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise BadInput(f"the domain XML is not UTF-8: {error.reason} at {error.start}", REMEDY) from error
    if len(raw) > BYTES_MAX:
        _refuse(f"has {len(raw)} bytes, {BYTES_MAX} are read at most")
    if b"\0" in raw:
        _refuse("holds a NUL byte")
    return raw


class _XmlReader:
    """What expat reports, put together. One use."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._open: list[Element] = []
        self._prefixes: dict[str, str] | None = None
        self._nodes = 0
        self._root: Element | None = None
        self._parser = parser = expat.ParserCreate(_DECODER, _SEPARATOR)
        parser.XmlDeclHandler = _declaration
        parser.StartDoctypeDeclHandler = _doctype
        parser.EntityDeclHandler = _entity
        parser.ProcessingInstructionHandler = _instruction
        parser.StartNamespaceDeclHandler = self._namespace
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end

    def read(self) -> XmlDocument:
        try:
            self._parser.Parse(self._raw, True)
        except expat.ExpatError as error:
            raise BadInput(f"the domain XML is not well-formed: {error}", REMEDY) from error
        if self._root is None:
            _refuse("has no element")
        return XmlDocument(self._raw, self._root)

    def _namespace(self, prefix: str | None, uri: str | None) -> None:
        self._nodes += 1
        if self._prefixes is None:
            self._prefixes = {}
        self._prefixes[prefix or ""] = uri or ""

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._nodes += 1 + len(attributes)
        if self._nodes > NODES_MAX:
            _refuse(f"has more than {NODES_MAX} elements and attributes")
        if len(self._open) >= DEPTH_MAX:
            _refuse(f"nests elements more than {DEPTH_MAX} deep")
        start = self._parser.CurrentByteIndex
        found = _START_TAG.match(self._raw, start)
        if found is None:
            _refuse(f"has a start tag at byte {start} that is not one")
        namespace, _, local = name.rpartition(_SEPARATOR)
        empty = self._raw.endswith(b"/>", start, found.end())
        prefixes, self._prefixes = self._prefixes or _NOTHING, None
        element = Element(namespace, local, attributes or _NOTHING, prefixes, start, found.end(), empty=empty)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _end(self, _name: str) -> None:
        """Where a tag closes itself expat stands behind it, else at the end tag."""
        element = self._open.pop()
        if element.empty:
            element.inner_end = element.end = element.inner_start
        else:
            element.inner_end = self._parser.CurrentByteIndex
            element.end = self._raw.index(b">", element.inner_end) + 1


def _declaration(version: str, encoding: str | None, _standalone: int) -> None:
    if version != "1.0":
        _refuse(f"is XML {version[:20]!r}, not 1.0")
    if encoding is not None and encoding.lower() not in {"utf-8", "utf8"}:
        _refuse(f"declares the encoding {encoding[:40]!r}, not UTF-8")


def _doctype(*_args: object) -> None:
    _refuse("has a document type (DTD): definitions have none")


def _entity(*_args: object) -> None:
    _refuse("declares an entity: definitions have none")


def _instruction(target: str, _data: str) -> None:
    _refuse(f"has a processing instruction, {target[:40]!r}: definitions have none")
