"""The files of an Iceberg table in a folder, as PyIceberg opens them: no others, whatever the table says.

A table's properties name code that PyIceberg imports and calls (`py-io-impl`), and servers that it signs in to. A table
may be anybody's, so none of them is obeyed.
"""

from __future__ import annotations

import os
import urllib.parse
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace.stages.runtime import InputError

#: The property of a catalog, or of an IO, that says below which folder files are opened.
_FOLDER = "headrace.folder"


class FolderIO(PyArrowFileIO):
    """Opens files below one folder."""

    def __init__(self, properties: Any) -> None:
        super().__init__({_FOLDER: properties[_FOLDER]})

    @classmethod
    def below(cls, folder: str) -> FolderIO:
        """One for a folder."""
        return cls({_FOLDER: folder})

    def new_input(self, location: str) -> Any:
        """A file to read. Raises InputError for one that is not below the folder."""
        return super().new_input(self._checked(location))

    def new_output(self, location: str) -> Any:
        """A file to write. Raises InputError for one that is not below the folder."""
        return super().new_output(self._checked(location))

    def delete(self, location: Any) -> None:
        """Delete a file. Raises InputError for one that is not below the folder."""
        self._checked(location if isinstance(location, str) else location.location)
        super().delete(location)

    def _checked(self, location: str) -> str:
        said = urllib.parse.urlsplit(location)
        path = said.path if said.scheme else location
        home = os.path.realpath(self.properties[_FOLDER])
        outside = os.path.commonpath((home, os.path.realpath(path))) != home or ".." in path.split("/")
        if outside or said.scheme not in ("", "file"):
            raise InputError(f"the table names {location[:200]!r}, which is not below its folder {home!r}")
        return location


class FolderCatalog(SqlCatalog):
    """A catalog in SQLite, whose tables lie in its folder. Their properties open no file."""

    def __init__(self, folder: str) -> None:
        own = {"py-io-impl": f"{FolderIO.__module__}.{FolderIO.__qualname__}", _FOLDER: folder}
        super().__init__("headrace", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}", **own)

    def _load_file_io(self, properties: Any = None, location: str | None = None) -> FileIO:
        del properties  # of the table
        return super()._load_file_io({}, location)
