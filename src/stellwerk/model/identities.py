"""Ids of one file: each is given once; who has none gets one."""

from __future__ import annotations

import re

from stellwerk.limits import Limits
from stellwerk.model.findings import Findings
from stellwerk.model.notation import shown
from stellwerk.model.xml import Element

__all__ = ["Identities"]

_KEY = re.compile(r"[\w.-]+")


class Identities:
    """Remembers which ids are taken."""

    def __init__(self, findings: Findings, limits: Limits) -> None:
        self._findings = findings
        self._limits = limits
        self._taken: dict[str, Element] = {}
        self._made_up: dict[str, int] = {}

    def claim(self, element: Element) -> str:
        """The element's id. Without one, or with one that is taken, there is a finding and a substitute."""
        given = element.get("id")
        if not given or not given.strip():
            self._findings.error(element, "an id is needed")
            return self.make_up(element.name, element)
        if len(given) > self._limits.id_chars_max:
            self._findings.error(
                element, f"the id has {len(given)} characters, at most {self._limits.id_chars_max} are allowed"
            )
        first = self._taken.get(given)
        if first is not None:
            self._findings.error(element, f"the id is taken by the {first.name} in line {first.position.line}")
            return self.make_up(given, element)
        self._taken[given] = element
        return given

    def claim_key(self, element: Element) -> str:
        """The id of a process, its key: it stands in addresses, and in ``key:version``."""
        key = self.claim(element)
        if element.get("id") == key and not _KEY.fullmatch(key):
            what = "has letters, digits, underscores, hyphens and dots only"
            self._findings.error(element, f"the id of a process {what}, not {shown(key)}")
        return key

    def make_up(self, stem: str, element: Element) -> str:
        """``stem#n``, with the first number that makes an id that nobody has."""
        number = self._made_up.get(stem, 0) + 1
        while f"{stem}#{number}" in self._taken:
            number += 1
        self._made_up[stem] = number
        made_up = f"{stem}#{number}"
        self._taken[made_up] = element
        return made_up
