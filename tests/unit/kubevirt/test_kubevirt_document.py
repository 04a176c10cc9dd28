"""XML as spans of bytes, and edits of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubevirt.edits import Edits, Fragment, escape
from kubevirt.sidecar_errors import BadInput
from kubevirt.xml_document import BYTES_MAX, DEPTH_MAX, NODES_MAX, Element, XmlDocument, read_document

ODD = """\
\ufeff<?xml version='1.0' encoding='utf-8' standalone="yes"?>
<!-- <devices> before the root -->
<root xmlns:q='urn:q'  a = "1>2"
      b='&quot;&#x41;"'>
  <first/><q:second q:x="é" y='"'/>é<![CDATA[<third/>]]>
  <third ><deep><!-- </deep> --></deep ></third
  >
</root >
<!-- after -->"""

HOSTILE = {
    "billion laughs": '<!DOCTYPE d [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><domain>&b;</domain>',
    "external entity": '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]><domain>&a;</domain>',
    "external DTD": '<!DOCTYPE d SYSTEM "http://192.0.2.1/d.dtd"><domain/>',
    "empty document type": "<!DOCTYPE domain><domain/>",
    "parameter entity": '<!DOCTYPE d [<!ENTITY % a "b">%a;]><domain/>',
    "undefined entity": "<domain>&nbsp;</domain>",
    "processing instruction": "<domain><?php x?></domain>",
    "stylesheet": '<?xml-stylesheet href="x"?><domain/>',
    "Latin-1 declared": '<?xml version="1.0" encoding="ISO-8859-1"?><domain/>',
    "UTF-16 declared": '<?xml version="1.0" encoding="UTF-16"?><domain/>',
    "XML 1.1": '<?xml version="1.1"?><domain/>',
    "NUL": "<domain>\0</domain>",
    "NUL by reference": "<domain>&#0;</domain>",
    "lone surrogate": "<domain>\ud800</domain>",
    "surrogate by reference": "<domain>&#xd800;</domain>",
    "non-character": "<domain>\ufffe</domain>",
    "control character": "<domain>\x0b</domain>",
    "duplicate attribute": "<domain a='1' a='2'/>",
    "duplicate by namespace": "<domain xmlns:a='u' xmlns:b='u' a:x='1' b:x='2'/>",
    "unbound prefix": "<q:domain/>",
    "two roots": "<domain/><domain/>",
    "text behind": "<domain/>x",
    "unclosed": "<domain><devices></domain>",
    "unfinished": "<domain",
    "nothing": "",
    "blanks": " \n",
    "text": "domain",
    "too deep": "<a>" * (DEPTH_MAX + 1) + "</a>" * (DEPTH_MAX + 1),
    "very deep": "<a>" * 200_000,
    "too many elements": "<a>" + "<b/>" * NODES_MAX + "</a>",
    "too many attributes": "<a " + " ".join(f"a{number}='1'" for number in range(NODES_MAX)) + "/>",
    "too large": "<a>" + " " * BYTES_MAX + "</a>",
    "10 MB": "<a>" + "x" * 10_000_000 + "</a>",
}

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def elements(element: Element) -> Iterator[Element]:
    yield element
    for child in element.children:
        yield from elements(child)


def read(raw: str | bytes) -> tuple[XmlDocument, Element]:
    document = read_document(raw)
    return document, document.root


def edited(raw: str, *fragments: Fragment) -> str:
    """A document with children appended to its root's first child."""
    document, root = read(raw)
    edits = Edits(document)
    edits.append(root.children[0], fragments, root)
    return edits.apply().decode()


def test_spans_are_the_bytes_of_elements() -> None:
    """Each span begins at `<` of its element and ends behind its `>`, whatever quotes, blanks, comments and CDATA are around."""
    document, root = read(ODD)
    spans = {each.name: document.raw[each.start : each.end].decode() for each in elements(root)}
    assert spans["root"] == ODD[ODD.index("<root") : ODD.index("\n<!-- after")]
    assert spans["first"] == "<first/>"
    assert spans["second"] == """<q:second q:x="é" y='"'/>"""
    assert spans["third"] == "<third ><deep><!-- </deep> --></deep ></third\n  >"
    assert spans["deep"] == "<deep><!-- </deep> --></deep >"
    inner = {each.name: document.raw[each.inner_start : each.inner_end].decode() for each in elements(root)}
    assert inner["deep"] == "<!-- </deep> -->"
    assert inner["first"] == ""


def test_names_attributes_and_namespaces_are_resolved() -> None:
    """Searches use decoded values and namespaces, not prefixes; the written text keeps them."""
    document, root = read(ODD)
    assert root.attributes == {"a": "1>2", "b": '"A"'}
    assert root.prefixes == {"q": "urn:q"}
    second = root.find("second", "urn:q")
    assert second is not None
    assert root.find("second") is None
    assert (document.tag(second), document.prefix(second), document.prefix(root)) == ("q:second", "q:", "")
    assert [each.name for each in document.read_attributes(second)] == ["q:x", "y"]
    assert [document.raw[each.value_start : each.value_end].decode() for each in document.read_attributes(root)] == [
        "urn:q",
        "1>2",
        '&quot;&#x41;"',
    ]


def test_text_is_resolved() -> None:
    """An element's text has references and CDATA resolved, and no comments."""
    document, root = read("<a> &#52;<!-- 9 --><![CDATA[2]]></a>")
    assert document.text(root) == " 42"


def test_a_second_element_where_one_is_known_is_refused() -> None:
    """A second element is refused: which of the two libvirt would use is unknown."""
    _, root = read("<a><b/><b/></a>")
    with pytest.raises(BadInput, match="2 <b> elements"):
        root.find("b")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_documents_are_refused(hostile: str) -> None:
    """Hostile documents are refused: nothing is resolved, the parser does not crash, and the message does not quote them."""
    with pytest.raises(BadInput) as refused:
        read_document(HOSTILE[hostile])
    assert len(str(refused.value)) < 400
    assert "passwd" not in str(refused.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"<a>\xff</a>",
        b"<a>\xed\xa0\x80</a>",
        b"\xff\xfe<\0a\0/\0>\0",
        b"<\0a\0/\0>\0",
        "<a/>".encode("utf-32"),
        b"\xc0\xbca/>",
        b"<a b='\xe9'/>",
    ],
)
def test_bytes_that_are_not_utf8_are_refused(raw: bytes) -> None:
    """UTF-16 and UTF-32 with and without their marks, Latin-1, and invalid UTF-8 are refused."""
    with pytest.raises(BadInput):
        read_document(raw)


def test_the_largest_that_is_read() -> None:
    """A document that has exactly the largest size is read."""
    deep = "<a>" * DEPTH_MAX + "</a>" * DEPTH_MAX
    assert len(list(elements(read_document(deep).root))) == DEPTH_MAX
    large = "<a>" + " " * (BYTES_MAX - 7) + "</a>"
    assert read_document(large).root.end == BYTES_MAX


@given(st.text(alphabet="<>/ab='\"&;! -[]?\n\r\t\0é", max_size=60) | st.text(max_size=30))
def test_any_text_is_a_document_or_refused(text: str) -> None:
    """Any text raises nothing but BadInput, and the spans of a document nest."""
    try:
        document = read_document(text)
    except BadInput:
        return
    for element in elements(document.root):
        assert element.start < element.inner_start <= element.inner_end <= element.end
        for before, after in zip(element.children, element.children[1:], strict=False):
            assert element.inner_start <= before.start < before.end <= after.start < after.end <= element.inner_end


def test_no_edit_is_no_change() -> None:
    """Bytes that are not edited stay as they came."""
    document, _ = read(ODD)
    assert Edits(document).apply() == ODD.encode()


def test_an_attribute_is_changed_in_its_place() -> None:
    """Quotes, blanks and order of attributes stay. A new attribute comes last, also in a tag that closes itself."""
    document, root = read(ODD)
    edits = Edits(document)
    edits.set_attribute(root, "a", "3'\"<&\n")
    edits.set_attribute(root, "c", "4")
    edits.set_attribute(root.children[0], "d", "5")
    edits.set_attribute(root.children[0], "e", "6")
    after = edits.apply().decode()
    assert """a = "3&apos;&quot;&lt;&amp;&#10;"\n      b='&quot;&#x41;"' c='4'>""" in after
    assert "<first d='5' e='6'/>" in after
    assert read_document(after).root.attributes == {"a": "3'\"<&\n", "b": '"A"', "c": "4"}


@given(TEXT)
def test_an_escaped_value_comes_back(value: str) -> None:
    """Every value that XML can hold is read as it was written, within either kind of quotes. Nothing in it becomes markup."""
    for quote in "'\"":
        raw = f"<a b={quote}{escape(value)}{quote}/>"
        try:
            attributes = read_document(raw).root.attributes
        except BadInput:
            assert any(ord(char) < 32 or char in "\ufffe\uffff" for char in value)
        else:
            assert attributes == {"b": value}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<r><x/></r>", "<r><x><n/></x></r>"),
        ("<r>\n  <x/>\n</r>", "<r>\n  <x>\n    <n/>\n  </x>\n</r>"),
        ("<r>\n\t<x a='1' /></r>", "<r>\n\t<x a='1' >\n\t\t<n/>\n\t</x></r>"),
        ("<r>\n  <x></x>\n</r>", "<r>\n  <x>\n    <n/>\n  </x>\n</r>"),
        ("<r>\n  <x>\n  </x>\n</r>", "<r>\n  <x>\n    <n/>\n  </x>\n</r>"),
        ("<r>\n  <x><!-- c -->\n  </x>\n</r>", "<r>\n  <x><!-- c -->\n    <n/>\n  </x>\n</r>"),
        ("<r>\n  <x>\n\n   <o/>\n  </x>\n</r>", "<r>\n  <x>\n\n   <o/>\n   <n/>\n  </x>\n</r>"),
        ("<r><x><o/> <!-- c --></x></r>", "<r><x><o/><n/> <!-- c --></x></r>"),
        ("<r> <q:x xmlns:q='u'/></r>", "<r> <q:x xmlns:q='u'><n/></q:x></r>"),
    ],
)
def test_a_child_is_appended_as_its_surroundings_are(before: str, after: str) -> None:
    """A child is put behind the last one with the same indentation. A document without line breaks gets none."""
    assert edited(before, Fragment("n")) == after


def test_children_are_written_in_order_and_nested() -> None:
    """Several children are appended at once, with their own children one level deeper."""
    fragments = (Fragment("n", {"a": "'"}, (Fragment("m"),)), Fragment("o"))
    assert edited("<r>\n <x/>\n</r>", *fragments) == "<r>\n <x>\n   <n a='&apos;'>\n     <m/>\n   </n>\n   <o/>\n </x>\n</r>"


def test_siblings_are_inserted_before_and_behind() -> None:
    """Siblings get their neighbour's indentation, and stand in the order of the calls."""
    document, root = read("<r>\n  <x/>\n</r>")
    edits = Edits(document)
    for name in ("a", "b"):
        edits.insert_before(root.children[0], root, Fragment(name))
    for name in ("y", "z"):
        edits.insert_after(root.children[0], root, Fragment(name))
    assert edits.apply() == b"<r>\n  <a/>\n  <b/>\n  <x/>\n  <y/>\n  <z/>\n</r>"


def test_an_element_is_removed_with_its_line() -> None:
    """No blank line is left where an element was removed."""
    document, root = read("<r>\n  <x/>\n  <y/>\n</r>")
    edits = Edits(document)
    edits.remove(root.children[1], root)
    assert edits.apply() == b"<r>\n  <x/>\n</r>"


def test_two_edits_of_one_place_are_a_mistake() -> None:
    """Two edits of one place are an error, because the result would be neither of them."""
    document, root = read("<r><x/></r>")
    edits = Edits(document)
    edits.append(root.children[0], [Fragment("n")], root)
    edits.append(root.children[0], [Fragment("n")], root)
    with pytest.raises(ValueError, match="overlap"):
        edits.apply()
