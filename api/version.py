"""The version of the installed distribution."""

from headrace.store import release

__version__ = release()
