"""XML that an endpoint answers, looked at before a tree is made of it: no DTD and no entities of its own, little depth.

Pure, and one pass.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
import xml.parsers.expat

#: Elements within each other, and in all: a page of a listing has a thousand keys with some eight elements each.
XML_DEPTH_MAX = 16
XML_ELEMENTS_MAX = 64_000


class BadXml(ValueError):  # noqa: N818 - named after what is so
    """The document is not one that S3 answers; says why."""


def read_xml(body: bytes) -> ET.Element:
    """The tree of a document, as it was looked at: in UTF-8, whatever it says of itself. Raises BadXml."""
    check_xml(body)
    try:
        return ET.fromstring(body, ET.XMLParser(encoding="utf-8"))  # noqa: S314 - looked at before
    except ET.ParseError as error:
        raise BadXml(f"it is no XML ({error})") from error


def check_xml(body: bytes) -> None:
    """Raise BadXml for what is no XML in UTF-8, has a DTD, or goes beyond the limits."""
    depth = count = 0

    def begin(_name: str, _attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > XML_DEPTH_MAX:
            raise BadXml(f"its elements are nested deeper than {XML_DEPTH_MAX}")
        if count > XML_ELEMENTS_MAX:
            raise BadXml(f"it has more than {XML_ELEMENTS_MAX:,} elements")

    def end(_name: str) -> None:
        nonlocal depth
        depth -= 1

    def refuse(*_: object) -> None:
        raise BadXml("it has a DTD, and may define entities")

    parser = xml.parsers.expat.ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = begin, end, refuse
    try:
        parser.Parse(body, True)
    except xml.parsers.expat.ExpatError as error:
        raise BadXml(f"it is no XML ({error})") from error
