"""TLS for listeners: a certificate and its key from files, which can be read again while connections go on."""

from __future__ import annotations

import ssl
from pathlib import Path

__all__ = ["open_tls", "reload_tls", "version_of"]

_PROTOCOLS = ["http/1.1"]


def open_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """:param certificate: PEM, with all that leads to the root.

    :raises OSError: (`ssl.SSLError` among them) they cannot be read, or do not fit each other.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    reload_tls(context, certificate, key)
    return context


def reload_tls(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """For new connections. :raises OSError: as above; what was there stays."""
    _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), certificate, key)  # half of a pair must not get in
    _load(context, certificate, key)


def version_of(*files: Path) -> tuple[tuple[int, int, int], ...]:
    """Another one when a file was written or replaced. :raises OSError: one cannot be looked at."""
    return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in (file.stat() for file in files))


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    context.load_cert_chain(certificate, key, password=_no_password)


def _no_password() -> str:
    """Instead of a question at the terminal, which nobody might answer."""
    raise OSError("the key is encrypted: give one that is not, which nobody else may read")
