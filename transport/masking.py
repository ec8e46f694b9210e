"""Texts without the secrets that URIs in them may carry: user information, and parameters named as secrets are.

Every line that Headrace logs or ends a command with goes through `mask`, and so do its errors of stores and pipelines,
whatever text they quote. Pure.
"""

from __future__ import annotations

import re

HIDDEN = "***"
#: Characters of one user's information, and of a parameter's name on either side of the word that gives it away.
_USER_MAX, _NAME_MAX = 1024, 64
_USER = re.compile(rf"(?<=://)[^\s/@'\"?#&]{{1,{_USER_MAX}}}@")
_WORDS = "signature|sig|secret|token|password|passwd|credential|access.?key|secret.?key|api.?key"
_PARAMETER = re.compile(rf"([?&][\w.-]{{0,{_NAME_MAX}}}(?:{_WORDS})=)[^\s&'\"#\\]+", re.IGNORECASE)


def mask(text: str) -> str:
    """The text with three stars in the place of each secret of a URI in it."""
    if "://" in text:
        text = _USER.sub(HIDDEN + "@", text)
    if "=" in text and ("?" in text or "&" in text):
        text = _PARAMETER.sub(rf"\1{HIDDEN}", text)
    return text
