"""Says what is wrong with the certificate of a service."""

from __future__ import annotations

#: Results of OpenSSL's check (X509_V_ERR_…) for a certificate whose authority is not among the trusted ones.
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})


def certificate_trouble(url: str, error: BaseException, naming: str) -> str:
    """Return what is wrong with the certificate of the service at *url*, and what to do if its authority is not known.

    *error* is the SSLCertVerificationError. *naming* says how to name the certificate of the authority: ``give --ca``.
    """
    if getattr(error, "verify_code", None) in _UNKNOWN_AUTHORITY:
        remedy = f"{naming} the certificate of the authority that signed it"
        return f"the certificate of the service at {url} is not trusted: {remedy}"
    return f"the certificate of the service at {url} is not valid: {getattr(error, 'verify_message', error)}"
