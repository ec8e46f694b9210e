"""`python -m headrace`: the `headrace` command."""

from headrace.cli.__main__ import main

if __name__ == "__main__":
    main()
