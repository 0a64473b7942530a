"""Pages of other sites, which a browser on this machine may show: what they may not do.

A browser tells the origin of a page where it asks another site. A page whose own name its owner lets point to this
machine (DNS rebinding) counts as the same site; but then its name stands in ``Host``.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

__all__ = ["is_foreign", "is_public_name"]

_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".home.arpa", ".test")
"""Nobody can own such a name (RFC 6761, 6762, 8375)."""


def is_foreign(origin: str | None, host: str | None) -> bool:
    """Whether a browser says that a page of another site sends this request. Programs send no origin."""
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True


def is_public_name(host: str | None) -> bool:
    """Whether the header ``Host`` has a name that somebody may own and let point to this machine: neither an address
    nor a name without dots."""
    name = _name_in(host or "")
    if "." not in name or name.endswith(_LOCAL_ENDINGS):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def _name_in(host: str) -> str:
    """Without a port. Of an address of IPv6, which has no dots or is one, nothing that matters."""
    if host.startswith("["):
        return ""
    return host.partition(":")[0].strip().rstrip(".").lower()
