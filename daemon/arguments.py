"""Command lines of Headrace's own processes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from headrace.pipeline import SecretShownError, check_arguments


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What `parser` makes of these arguments, else of the process's own; ends with 2 where one carries a secret."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        check_arguments(given, os.environ)
    except SecretShownError as error:
        parser.error(str(error))
    return parser.parse_args(given)
