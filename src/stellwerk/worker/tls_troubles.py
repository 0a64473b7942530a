"""What is wrong with an encrypted connection, in words that name the way out."""

from __future__ import annotations

import ssl

__all__ = ["SPEAKS_TLS", "tls_trouble", "unchecked_context"]

SPEAKS_TLS = "this port speaks TLS, so that the URL must begin with https:// (or wss://)"
_SPEAKS_NO_TLS = "this port speaks no TLS: the URL that fits begins with http:// (or ws://)"
_WAY_OUT = "name the file with the roots that vouch for it in the environment variable SSL_CERT_FILE"

_PLAIN_ANSWERS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}
)
"""What OpenSSL makes of an answer in plain text; which of them depends on its version."""
_UNKNOWN_AUTHORITIES = frozenset({18, 19, 20, 21, 27})
"""X509_V_ERR_… of OpenSSL's x509_vfy.h: self-signed, an issuer that is not known, or not trusted."""
_OTHER_NAMES = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""


def tls_trouble(error: BaseException) -> str | None:
    """None: it is none of TLS.

    :param error: of the handshake, or what it caused.
    """
    found = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(found, ssl.SSLCertVerificationError):
        return _certificate_trouble(found)
    if not isinstance(found, ssl.SSLError):
        return None
    if found.reason in _PLAIN_ANSWERS:
        return _SPEAKS_NO_TLS
    return f"no TLS connection came about: {found.reason or found.strerror or found}"


def _certificate_trouble(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code in _UNKNOWN_AUTHORITIES:
        return f"nobody whom this machine trusts vouches for the certificate ({said}): {_WAY_OUT}"
    if error.verify_code in _OTHER_NAMES:
        return f"the certificate is for another name ({said}): ask by a name that stands in it"
    return f"the certificate is not good: {said}"


def unchecked_context() -> ssl.SSLContext:
    """Only to learn whether a port speaks TLS at all: nothing is sent over it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
