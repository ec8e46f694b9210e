"""What a run was asked to be like, from the options of `headrace run` and `headrace apply`."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client import RunOptions, UsageError

#: What may become of input that changed since it was read, or vanished while it was open; the first is the default.
CHANGED_INPUT = ("halt", "drop", "reread")
#: The share of records that may be quarantined where nobody says another.
MAX_QUARANTINED = "50%"
#: Records that anybody may name.
RECORDS_MAX = 1 << 53


def make_options(
    amend: bool,
    fuse: bool,
    replicas: int,
    max_quarantined: str = MAX_QUARANTINED,
    places: Sequence[str] = (),
    transports: Sequence[str] = (),
    record_seconds: float = 0.0,
    task_memory: int = 0,
    changed_input: str = CHANGED_INPUT[0],
    seal_seconds: float = 0.0,
) -> RunOptions:
    """The options of a run from the command line's. Raises UsageError."""
    records, share = _allowance(max_quarantined)
    if changed_input not in CHANGED_INPUT:
        raise UsageError(f"--changed-input {changed_input!r}: give one of {', '.join(CHANGED_INPUT)}")
    return RunOptions(
        amend=amend,
        fuse=fuse,
        replicas=replicas,
        quarantined_max=records,
        quarantined_share_max=share,
        places=_by_stage("--place", places),
        transports=_by_stage("--transport", transports),
        record_s=record_seconds,
        task_bytes=task_memory << 20,
        changed_input=changed_input,
        seal_age_s=seal_seconds,
    )


def _by_stage(option: str, given: Sequence[str]) -> dict[str, str]:
    """`STAGE=VALUE` of an option that may be repeated."""
    pairs = [item.partition("=") for item in given]
    for item, (stage, _, value) in zip(given, pairs, strict=True):
        if not stage or not value:
            raise UsageError(f"{option} {item!r}: give a stage and what it shall have, as STAGE=VALUE")
    return {stage: value for stage, _, value in pairs}


def _allowance(text: str) -> tuple[int | None, float | None]:
    """`100` as records, `1%` as a share."""
    if not text:
        return None, None
    try:
        if not text.endswith("%"):
            records = int(text)
            if 0 <= records <= RECORDS_MAX:
                return records, None
        else:
            share = float(text[:-1]) / 100
            if 0 <= share <= 1:
                return None, share
    except ValueError:
        pass
    raise UsageError(f"--max-quarantined {text!r}: give a number of records, such as 100, or a share, such as 1%")
