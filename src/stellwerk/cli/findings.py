"""Findings in BPMN files as compilers print them, so that editors find the place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["finding_line"]


def finding_line(finding: Mapping[str, Any]) -> str:
    """``order.bpmn:12:5: serviceTask "charge": no topic says which workers do this``."""
    name = f'{finding["element"]} "{finding["element_id"]}"' if finding["element_id"] else finding["element"]
    severity = "" if finding["severity"] == "error" else f"{finding['severity']}: "
    return f"{finding['file']}:{finding['line']}:{finding['column']}: {severity}{name}: {finding['what']}"
