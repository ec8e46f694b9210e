"""How hypothesis searches: the same examples in each run of the suite, new ones where a search is asked for.

`make test` must say the same of the same tree each time. `--hypothesis-profile=search`, which `make search` gives,
draws fresh examples, ten times as many; what it finds becomes an `@example` of the test.
"""

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1_000, deadline=None)
settings.load_profile("same")
