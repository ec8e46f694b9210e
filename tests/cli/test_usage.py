"""A command line that is wrong is refused before anything is started, with what to give instead."""

from pathlib import Path

import pytest

from headrace.cli.main import invoke


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("dataset", "see `headrace dataset --help`"),
        ("dataset show", "missing argument 'URI'; see `headrace dataset show --help`"),
        ("dataset sow", "Did you mean 'show'? see `headrace dataset --help`"),
        ("controller --listen nowhere", "--listen 'nowhere': give HOST:PORT"),
        ("controller --cluster x --listen 127.0.0.1:70000", "--listen '127.0.0.1:70000': give HOST:PORT"),
        ("worker --notice https://metadata/notice", "--notice: a metadata service is asked over http:// alone"),
        ("worker --notice gs://bucket/notice", "--notice: a metadata service is asked over http:// alone"),
        ("controller --metrics here:there", "--metrics 'here:there': give HOST:PORT"),
        ("controller --advertise gate", "--advertise 'gate': give HOST:PORT"),
        ("worker --controller here", "--controller 'here': give HOST:PORT"),
        ("worker --label ssd", "--label 'ssd': give it as KEY=VALUE"),
        ("worker --relay-port -2", "--relay-port"),
        ("controller --listen 127.0.0.1:7420", "without a cluster nothing on it proves who speaks"),
        ("controller --listen insecure-tcp:0.0.0.0:7420", "plain text is allowed on loopback only, and 0.0.0.0 is"),
        ("worker --controller 127.0.0.1:7420", "insecure-tcp:127.0.0.1:7420 lets every user of this host command it"),
        ("status --controller 127.evil.example:7420", "without a cluster nothing on it proves who speaks"),
        ("status --controller unix:sock", "give the whole path of a socket"),
        ("cluster init new --controller here", "--controller 'here': give HOST:PORT"),
        ("simulate --mutant no-such", "`headrace simulate --mutant ?` lists them"),
        ("dataset tag data --delete", "name the tag: "),
        ("dataset tag data --move", "name the tag: "),
        ("dataset tag data best --move --delete", "give --delete or --move, not both"),
        ("dataset bisect data --run 'x", '--run "\'x": No closing quotation'),
        ("run x.py --limit 1 --from data@7", "--from means nothing to a preview"),
        ("run x.py --limit 1 --judge-again quarantined", "--judge-again means nothing to a preview"),
        ("run x.py --limit 1 --page", "--page means nothing to a preview"),
        ("run x.py --limit 1 --changed-input bogus", "--changed-input 'bogus': give one of halt, drop, reread"),
        ("run x.py --limit 1 --max-quarantined xx", "--max-quarantined 'xx'"),
        ("run x.py --limit 1 --gate-pauses", "--gate-pauses needs --gate"),
        ("apply x.py --gate-pauses", "--gate-pauses needs --gate"),
        ("dataset show data --card card --samples", "--card writes the scorecard alone"),
        ("dataset trace data id --trust-uris", "give a dataset and a record's id, or --checkpoint"),
        ("dataset trace data --index --step 3", "give a dataset and a record's id, or --checkpoint"),
        ("dataset trace --checkpoint c.json --step 3 --index", "give --checkpoint with --step N"),
        ("dataset dedup data --by score", "--by score: --keep first looks at no field"),
        ("quickstart --data ~nouser/x", "no home of that user is known here"),
    ],
)
def test_wrong_usage_is_refused_at_once(
    arguments: str, words: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    refused(arguments, words, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("apply x.py --replicas {}", "--replicas {}: the number is too large; give at most 65,536"),
        ("apply x.py --task-memory {}", "--task-memory, in MiB, {}: the number is too large"),
        ("apply x.py --priority {}", "--priority {}: the number is too large"),
        ("apply x.py --priority=-{}", "--priority -{}: the number is too large"),
        ("apply x.py --cores {}", "--cores {}: the number is too large"),
        ("apply x.py --workers {}", "--workers {}: the number is too large"),
        ("run x.py --limit 1 --replicas {}", "--replicas {}: the number is too large"),
        ("scale p read {}", "N {}: the number is too large"),
        ("logs --lines {}", "--lines {}: the number is too large"),
        ("queue set q --weight {}", "--weight {}: the number is too large"),
        ("worker --cores {}", "'--cores': {} is not in the range"),
        ("cluster token c --days {}", "'--days': {} is not in the range"),
        ("tokenizer train a.jsonl t.json --vocab-size {}", "'--vocab-size': {} is not in the range"),
    ],
)
def test_a_number_beyond_every_use_is_wrong_usage(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    number = "9" * 20
    refused(arguments.format(number), words.format(number), capsys)


def refused(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("headrace: ")
    assert words in told.err
    assert len(told.err.splitlines()) == 1


def test_a_worker_may_offer_as_many_cores_as_are_believed() -> None:
    from headrace.cli.commands.cluster import daemons
    from headrace.controller.core.cluster import event_checks

    assert daemons.CORES_MAX == event_checks.CORES_MAX


def test_metrics_may_be_served_at_a_port_alone() -> None:
    from headrace.client.errors import check_address

    check_address("--metrics", "9420", host_needed=False)
    check_address("--listen", "[::1]:7420")


def test_the_version_is_told_by_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert (invoke(["version"]), invoke(["--version"])) == (0, 0)
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_the_mutants_of_the_simulator_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", "--mutant", "?"]) == 0
    assert "overlap-ignored" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("text", ["9" * 400 + "d", "0001-01-01T00:00", "1e9s", "-1s", "\u0661\u0660m"])
def test_a_time_that_no_clock_shows_is_wrong_usage(text: str) -> None:
    from headrace.cli.commands.cluster.logs import since_of
    from headrace.client.errors import UsageError

    with pytest.raises(UsageError, match="--since"):
        since_of(text, 1e9)


@pytest.mark.parametrize("text", ["-1", "9" * 20, "nan%", "inf%", "101%", "-1%"])
def test_an_allowance_that_nobody_can_keep_is_wrong_usage(text: str) -> None:
    from headrace.cli.run_options import RUN, defaults, run_options
    from headrace.client.errors import UsageError

    with pytest.raises(UsageError, match="--max-quarantined"):
        run_options({**defaults(RUN), "max_quarantined": text})


@pytest.mark.parametrize("text", ["localhost:\u0661\u0662", "localhost:65536", "localhost:-1", ":1"])
def test_a_port_that_is_none_is_wrong_usage(text: str) -> None:
    from headrace.client.errors import UsageError, check_address

    with pytest.raises(UsageError, match="--listen"):
        check_address("--listen", text)


def test_no_part_of_a_log_line_is_obeyed_by_a_terminal() -> None:
    from headrace.cli.commands.cluster.logs import line_text

    odd = "\x1b[2J\u2028\r"
    names = ("time", "process", "message", "task", "pipeline", "cause", "traceback")
    text = line_text({**dict.fromkeys(names, odd), "level": "error"}).plain
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_folder_that_is_gone_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert invoke(["dataset", "show", "data"]) == 1
    assert capsys.readouterr().err == "headrace: the current folder is gone: change to one that stands\n"
