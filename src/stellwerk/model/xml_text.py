"""From the bytes of an XML file to its text: byte order marks, the declared encoding, XML 1.1 (XML 1.0, appendix F)."""

from __future__ import annotations

import codecs
import re

from stellwerk.model.process import Position

__all__ = ["XmlRefused", "decoded"]

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # UTF-32 first: its little-endian mark begins with the one of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UNMARKED_UTF16 = ((b"<\x00?\x00", "utf-16-le"), (b"\x00<\x00?", "utf-16-be"))
_DECLARED = re.compile(rb"""<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z][A-Za-z0-9._-]{0,40})["']""")
_XML_1_1 = re.compile(r"""(<\?xml\s+version\s*=\s*["'])1\.1(["'])""")
_LINE_END = re.compile(r"\r\n|\r|\n")

# Python knows encodings that are none of characters (idna, unicode_escape, …): only these are XML's.
_READABLE = re.compile(
    r"ascii|utf-8(-sig)?|utf-16(-[lb]e)?|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+"
    r"|gb2312|gbk|gb18030|big5\w*|shift_jis\w*|euc_\w+|iso2022_\w+|tis-620"
)


class XmlRefused(Exception):
    """The file is not well-formed XML, or it is XML that is never read (a DOCTYPE, too deep, too large)."""

    def __init__(self, position: Position, what: str) -> None:
        super().__init__(f"line {position.line}, column {position.column}: {what}")
        self.position = position
        self.what = what


def decoded(xml: bytes) -> str:
    """The file as text, without byte order mark, lines ends as they are.

    :raises XmlRefused: for an unknown encoding, or bytes that the encoding does not have.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if xml.startswith(mark):
            return _as_xml_1_0(_decode(xml[len(mark) :], encoding))
    return _as_xml_1_0(_decode(xml, _encoding_without_mark(xml)))


def _as_xml_1_0(text: str) -> str:
    """XML 1.1 differs in characters that no BPMN file needs; expat reads 1.0 only."""
    return _XML_1_1.sub(r"\g<1>1.0\g<2>", text, count=1) if text.startswith("<?xml") else text


def _encoding_without_mark(xml: bytes) -> str:
    for start, encoding in _UNMARKED_UTF16:
        if xml.startswith(start):
            return encoding
    declared = _DECLARED.match(xml)
    if declared is None:
        return "utf-8"
    name = declared[1].decode("ascii")
    encoding = _codec_name(name)
    # The declaration was readable byte by byte, so this is no UTF-16, whatever it says (.NET writers do that).
    return "utf-8" if encoding.startswith("utf-16") else encoding


def _codec_name(declared: str) -> str:
    try:
        name = codecs.lookup(declared).name
    except LookupError:
        name = ""
    if not _READABLE.fullmatch(name):
        raise XmlRefused(Position(1, 1), f'the encoding "{declared}" is unknown')
    return name


def _decode(xml: bytes, encoding: str) -> str:
    try:
        return xml.decode(encoding)
    except UnicodeDecodeError as error:
        before = xml[: error.start].decode(encoding, errors="replace")
        raise XmlRefused(_end_of(before), f"a byte that {encoding} does not have: {error.reason}") from None


def _end_of(text: str) -> Position:
    ends = list(_LINE_END.finditer(text))
    return Position(len(ends) + 1, len(text) - (ends[-1].end() if ends else 0) + 1)
