"""When a certificate has to be renewed, in words for its owner."""

from __future__ import annotations

from datetime import datetime, timedelta

from headrace.cluster.certificates import Credentials

#: A certificate that ends within this is spoken of.
SOON = timedelta(days=30)


def why_renew(credentials: Credentials, at: datetime) -> str:
    """Say that a certificate ends SOON behind the time `at`, or has ended; empty for one that is good for longer."""
    return _said(credentials, at, SOON)


def why_ended(credentials: Credentials, at: datetime) -> str:
    """Say that a certificate is in force no more at the time `at`; empty for one that is."""
    return _said(credentials, at, timedelta())


def _said(credentials: Credentials, at: datetime, before: timedelta) -> str:
    try:
        end = credentials.certificate().not_valid_after_utc
    except ValueError as error:
        return f"its certificate cannot be read: {error}"
    if at + before <= end:
        return ""
    return f"its certificate {'ends' if at <= end else 'ended'} on {end:%Y-%m-%d}"
