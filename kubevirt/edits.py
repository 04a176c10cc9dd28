"""Edits of a document as splices of its bytes: insertions and new attribute values, and nothing else moves. Pure.

What is inserted is indented as its siblings are, and a document without line breaks stays without. Values are escaped, so that
what comes from a VM's spec cannot become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubevirt.xml_document import Element, XmlDocument

_ESCAPES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "'": "&apos;",
    '"': "&quot;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}
_ESCAPED: Final = re.compile("[&<>'\"\t\n\r]")
_SELF_CLOSING: Final = len("/>")


@dataclass(frozen=True)
class Fragment:
    """An element to insert: `name` as it is to be written, with a prefix where it needs one."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Fragment, ...] = ()

    def write(self, indent: str) -> str:
        """As XML; `indent` is what stands before it, a line break and blanks, or "" for none anywhere in it."""
        head = f"<{self.name}" + "".join(f" {name}='{escape(value)}'" for name, value in self.attributes.items())
        if not self.children:
            return f"{head}/>"
        inner = deeper(indent)
        return f"{head}>{''.join(inner + child.write(inner) for child in self.children)}{indent}</{self.name}>"


def escape(value: str) -> str:
    """A value as it can stand between either sort of quotes."""
    return _ESCAPED.sub(lambda found: _ESCAPES[found.group()], value)


def deeper(indent: str) -> str:
    """The indentation of an element's children, given its own."""
    if "\n" not in indent:
        return ""
    return indent + ("\t" if indent.endswith("\t") else "  ")


@dataclass(frozen=True)
class Splice:
    """Bytes [start, end) of the document become `new`."""

    start: int
    end: int
    new: bytes


class Edits:
    """Edits collected for one document; they do not see each other. `apply` gives the new bytes.

    An element gets its new children in one call: a caller must not `append` twice to the same one.
    """

    def __init__(self, document: XmlDocument) -> None:
        self.document = document
        self.splices: list[Splice] = []

    def apply(self) -> bytes:
        raw, pieces, at = self.document.raw, [], 0
        for splice in sorted(self.splices, key=lambda each: (each.start, each.end)):
            if splice.start < at:
                raise ValueError(f"two edits overlap at byte {splice.start}")
            pieces += [raw[at : splice.start], splice.new]
            at = splice.end
        return b"".join([*pieces, raw[at:]])

    def set_attribute(self, element: Element, name: str, value: str) -> None:
        """Give an attribute a value: in its place where it is, else as the last one."""
        written = self.document.read_attributes(element)
        for attribute in written:
            if attribute.name == name:
                self._splice(attribute.value_start, attribute.value_end, escape(value))
                return
        end = written[-1].end if written else self.document.name_end(element)
        self._splice(end, end, f" {name}='{escape(value)}'")

    def insert_after(self, sibling: Element, parent: Element, fragment: Fragment) -> None:
        """Put an element behind `sibling`, indented like it. Later calls for the same one come later."""
        indent = self._indent(sibling, parent)
        self._splice(sibling.end, sibling.end, indent + fragment.write(indent))

    def insert_before(self, sibling: Element, parent: Element, fragment: Fragment) -> None:
        """Put an element before `sibling`, indented like it."""
        indent = self._indent(sibling, parent)
        self._splice(sibling.start, sibling.start, fragment.write(indent) + indent)

    def append(self, element: Element, fragments: Iterable[Fragment], parent: Element | None) -> None:
        """Put new children behind those that `element` has. `parent` is its own, None for the root."""
        if element.children:
            for fragment in fragments:
                self.insert_after(element.children[-1], element, fragment)
            return
        own = self._indent(element, parent) if parent else "\n"
        inner = deeper(own)
        text = "".join(inner + fragment.write(inner) for fragment in fragments)
        if element.empty:
            self._splice(element.end - _SELF_CLOSING, element.end, f">{text}{own}</{self.document.tag(element)}>")
            return
        blank = self.document.space_before(element.inner_end, element.inner_start)
        at = element.inner_end - len(blank)
        self._splice(at, at, text + ("" if blank else own))

    def remove(self, element: Element, parent: Element) -> None:
        """Take an element out, with the blanks before it."""
        self._splice(element.start - len(self.document.space_before(element.start, parent.inner_start)), element.end, "")

    def _indent(self, element: Element, parent: Element) -> str:
        """What stands before an element when it begins a line, else nothing."""
        space = self.document.space_before(element.start, parent.inner_start).decode()
        return space[space.rindex("\n") :] if "\n" in space else ""

    def _splice(self, start: int, end: int, new: str) -> None:
        self.splices.append(Splice(start, end, new.encode()))
