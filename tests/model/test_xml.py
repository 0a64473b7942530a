"""Files that are hostile, broken, or written in an uncommon encoding."""

from __future__ import annotations

import codecs
from collections.abc import Callable

import pytest

from stellwerk.limits import Limits
from stellwerk.model.process import Finding, Position, Severity
from stellwerk.model.reader import ReadResult, read_definitions

_MODEL = 'xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"'
_BODY = f'<definitions {_MODEL}>\r\n<process id="größe"><startEvent id="s" name="Übergabe"/></process></definitions>'

_ENTITIES = "".join(f'<!ENTITY a{number} "{10 * f"&a{number - 1};"}">' for number in range(1, 10))
_REFERENCES, _LONG = "&a;" * 2_000, "x" * 100_000
_MANY_TASKS = "<task id='x'/>" * 200_000
_ATTACKS = {
    "billion laughs": f'<!DOCTYPE d [<!ENTITY a0 "lol">{_ENTITIES}]><definitions {_MODEL}>&a9;</definitions>',
    "quadratic blowup": f'<!DOCTYPE d [<!ENTITY a "{_LONG}">]><definitions {_MODEL}>{_REFERENCES}</definitions>',
    "external entity": f'<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/passwd">]><definitions {_MODEL}>&e;</definitions>',
    "external DTD": f'<!DOCTYPE d SYSTEM "file:///nonexistent.dtd"><definitions {_MODEL}/>',
    "deep": "<a>" * 200_000 + "</a>" * 200_000,
    "wide": f"<definitions {_MODEL}>{_MANY_TASKS}</definitions>",
}


def _only_finding(xml: bytes, limits: Limits | None = None) -> Finding:
    result = read_definitions(xml, limits=limits)
    assert result.processes == ()
    (finding,) = result.findings
    assert finding.severity is Severity.ERROR
    return finding


@pytest.mark.parametrize(
    ("attack", "what"),
    [
        ("billion laughs", "DOCTYPE"),
        ("quadratic blowup", "DOCTYPE"),
        ("external entity", "DOCTYPE"),
        ("external DTD", "DOCTYPE"),
        ("deep", "nested deeper than 100"),
        ("wide", "more than 100000 elements"),
    ],
)
def test_a_hostile_file_is_refused_by_line_and_column(attack: str, what: str) -> None:
    finding = _only_finding(_ATTACKS[attack].encode())
    assert what in finding.what
    assert finding.position.line == 1
    assert finding.position.column >= 1


def test_a_file_over_the_size_limit_is_refused_before_it_is_parsed() -> None:
    finding = _only_finding(b"<" * 101, Limits(definition_bytes_max=100))
    assert "101 bytes, at most 100" in finding.what


@pytest.mark.parametrize(
    ("xml", "what", "position"),
    [
        (b"", "no element found", Position(1, 1)),
        (b"<a>\n  <b></a>", "mismatched tag", Position(2, 8)),
        (b"<a>\n  <x:b/></a>", "unbound prefix", Position(2, 3)),
        (b"<a>&nbsp;</a>", "undefined entity", Position(1, 4)),
        (b"<a>\x00</a>", "invalid token", Position(1, 4)),
        (b"<a/><b/>", "junk after document element", Position(1, 5)),
        (b"<a b='1' b='2'/>", "duplicate attribute", Position(1, 10)),
        (b"not XML at all", "syntax error", Position(1, 1)),
        (b"<a>\n\xff\xfe</a>", "a byte that utf-8 does not have", Position(2, 1)),
        (b'<?xml version="1.0" encoding="klingon"?><a/>', 'the encoding "klingon" is unknown', Position(1, 1)),
        (b'<?xml version="1.0" encoding="idna"?><a/>', 'the encoding "idna" is unknown', Position(1, 1)),
        (b'<?xml version="1.0" encoding="hex"?><a/>', 'the encoding "hex" is unknown', Position(1, 1)),
        (b'<?xml version="1.0" encoding="unicode_escape"?><a/>', "is unknown", Position(1, 1)),
    ],
)
def test_broken_xml_is_refused_by_line_and_column(xml: bytes, what: str, position: Position) -> None:
    finding = _only_finding(xml)
    assert what in finding.what
    assert finding.position == position


@pytest.mark.parametrize(
    ("declaration", "encoding", "mark"),
    [
        ("", "utf-8", b""),
        ("", "utf-8", codecs.BOM_UTF8),
        ('<?xml version="1.0" encoding="UTF-8"?>', "utf-8", codecs.BOM_UTF8),
        ('<?xml version="1.0" encoding="UTF-16"?>', "utf-16-le", codecs.BOM_UTF16_LE),
        ('<?xml version="1.0" encoding="UTF-16"?>', "utf-16-be", codecs.BOM_UTF16_BE),
        ('<?xml version="1.0" encoding="UTF-16"?>', "utf-16-le", b""),
        ('<?xml version="1.0" encoding="utf-16"?>', "utf-8", b""),
        ('<?xml version="1.0" encoding="UTF-32"?>', "utf-32-le", codecs.BOM_UTF32_LE),
        ("<?xml version='1.0' encoding='windows-1252'?>", "windows-1252", b""),
        ('<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>', "iso-8859-1", b""),
        ('<?xml version="1.1" encoding="UTF-8"?>', "utf-8", b""),
        ('<?xml version="1.1"?>', "utf-16-le", codecs.BOM_UTF16_LE),
        ('<?xml version="1.0" encoding="GB18030"?>', "gb18030", b""),
    ],
)
def test_every_usual_encoding_is_read(declaration: str, encoding: str, mark: bytes) -> None:
    result = read_definitions(mark + (declaration + _BODY).encode(encoding))
    (process,) = result.processes
    assert process.key == "größe"
    assert process.nodes["s"].name == "Übergabe"
    assert process.nodes["s"].position == Position(2, len('<process id="größe">') + 1)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_with_every_line_end(line_end: str, file_with: Callable[..., bytes]) -> None:
    body = '<process id="p">\n\n  <startEvent id="s"/>\n</process>'
    (process,) = read_definitions(file_with(body).replace(b"\n", line_end.encode())).processes
    assert process.nodes["s"].position == Position(4, 3)


def test_a_file_without_bpmn_is_refused(read: Callable[..., ReadResult]) -> None:
    assert _only_finding(b"<xmi/>").what.startswith("the root of a BPMN file is definitions of the namespace")
    result = read("<message id='m'/>")
    assert [finding.what for finding in result.findings] == ["the file holds no process"]
