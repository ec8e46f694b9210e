"""A stage as a function of Ray Data. It needs no Ray: it maps Arrow tables to Arrow tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.pipeline import Stage
from headrace.stages.interop.applied import applied
from headrace.stages.runtime import InputError


class StageFunction:
    """See `to_ray`. It travels to Ray's workers as the stage's declaration."""

    def __init__(self, stage: Stage, text_key: str, id_key: str, *, verdicts: bool) -> None:
        self.stage, self.text_key, self.id_key, self.verdicts = stage, text_key, id_key, verdicts
        self.__name__ = f"headrace_{stage.name}"

    def __call__(self, table: pa.Table) -> pa.Table:
        """The rows that are kept, or all with what became of them. Raises InputError for a table without text."""
        names = table.column_names
        if self.text_key not in names:
            known = ", ".join(names[:20])
            raise InputError(f'the rows have no column "{self.text_key}"; they have: {known}; name it with text_key=')
        texts: Any = table.column(self.text_key).cast(pa.string()).to_pylist()
        missing = [index for index, text in enumerate(texts) if text is None]
        ids = table.column(self.id_key).to_pylist() if self.id_key in names else range(len(texts))
        others = table.select([name for name in names if name not in (self.text_key, self.id_key)])
        metadata = others.to_pylist() if others.num_columns else [{}] * len(texts)
        fates = applied(self.stage).fates([str(one) for one in ids], [text or "" for text in texts], metadata)
        for index in missing:
            fates[index] = None, None, "quarantined", f'text is not a string: column "{self.text_key}" is null'
        place = names.index(self.text_key)
        if self.verdicts:
            back = [texts[index] if fate[0] is None else fate[0] for index, fate in enumerate(fates)]
            table = table.set_column(place, self.text_key, pa.array(back, pa.string()))
            table = table.append_column("verdict", pa.array([fate[2] for fate in fates], pa.string()))
            return table.append_column("reason", pa.array([fate[3] or None for fate in fates], pa.string()))
        kept = [index for index, fate in enumerate(fates) if fate[0] is not None]
        back = [fates[index][0] for index in kept]
        rows = table.take(pa.array(kept, pa.int64()))
        return rows.set_column(place, self.text_key, pa.array(back, pa.string()))
