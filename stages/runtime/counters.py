"""What stages count besides verdicts and edits; without imports, since commands that never load a stage show it.

A stage counts by `Batch.counted(stage, name, count)`. The names are its own, and every reader shows them as they are:
`stage/name` and the number. One beginning of a name has a meaning for all stages.
"""

from __future__ import annotations

#: Begins the name of a counter of records that had not what the stage judges by, and were let through: "without a URL".
#: A stage that let nearly all records through so has judged nothing, and the run says so.
WITHOUT = "without "
