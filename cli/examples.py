"""Examples of each command, as `--help` shows them; a test holds each to what the command takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: By what follows `headrace`.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        "headrace quickstart",
        "headrace run examples/plain.py -p input='corpus/*.jsonl' -p output=data/plain -p tokenizer=deepseek",
        "headrace dataset show data/plain",
    ),
    "quickstart": ("headrace quickstart", "headrace quickstart --data /scratch --fresh --steps 200"),
    "run": (
        "headrace run examples/fineweb.py -p input='corpus/*.jsonl' -p output=data/fineweb -p tokenizer=deepseek",
        "headrace run examples/fineweb.py -p input='corpus/*.jsonl' -p output=data/fineweb --limit 1000",
        (
            "headrace run examples/plain.py -p input='s3://corpus/*.zst?endpoint=http://10.0.0.5:9000' \\\n"
            "    -p output=data/plain -p tokenizer=tokenizer.json --max-quarantined 1% --json"
        ),
    ),
    "controller": (
        "headrace controller",
        "headrace controller --cluster cluster --listen 10.77.0.1:7420 --root s3://bucket/cluster",
    ),
    "worker": (
        "headrace worker --name one",
        "headrace worker --join token --state member --label disk=ssd",
        "headrace worker --state member",
    ),
    "cluster init": ("headrace cluster init cluster --controller 10.77.0.1:7420 --name press",),
    "cluster token": ("headrace cluster token cluster --name one", "headrace cluster token cluster --days 7"),
    "cluster operator": ("headrace cluster operator cluster anna --name anna",),
    "cluster expel": ("headrace cluster expel one --yes", "headrace cluster expel anna --operator --yes"),
    "apply": (
        "headrace apply examples/plain.py -p input='corpus/*.jsonl' -p output=/data/plain --wait",
        (
            "headrace apply examples/plain.py -p input='corpus/*.jsonl' -p output=/data/plain --dry-run \\\n"
            "    --place read=disk=ssd --place write=two --transport write=quic"
        ),
    ),
    "status": ("headrace status", "headrace status plain --json"),
    "top": ("headrace top", "headrace top plain --once"),
    "logs": (
        "headrace logs --pipeline plain --since 10m",
        "headrace logs --cause apply.3f2a.17",
        "headrace logs --level warning --follow",
    ),
    "pause": ("headrace pause plain --wait",),
    "resume": ("headrace resume plain",),
    "scale": ("headrace scale plain tokenize 8 --wait",),
    "move": ("headrace move plain write two", "headrace move plain read disk=ssd --wait"),
    "relink": ("headrace relink plain write quic",),
    "drain": ("headrace drain one --wait", "headrace drain one --back"),
    "stop": ("headrace stop plain --wait",),
    "cancel": ("headrace cancel plain",),
    "clear": ("headrace clear plain", "headrace clear"),
    "dataset ls": ("headrace dataset ls data", "headrace dataset ls s3://bucket/data --json"),
    "dataset show": (
        "headrace dataset show data/plain",
        "headrace dataset show data/plain --samples --quarantine",
        "headrace dataset show data/plain --card card",
    ),
    "dataset verify": ("headrace dataset verify data/plain", "headrace dataset verify data/plain --gate gate.toml"),
    "dataset trace": (
        "headrace dataset trace data/plain doc-000042",
        "headrace dataset trace --checkpoint loader.json --step 1000",
        "headrace dataset trace --checkpoint loader.json --document doc-000042",
        "headrace dataset trace --checkpoint loader.json --step 1000 --moved web=s3://lake/web",
        "headrace dataset trace --checkpoint loader.json --step 1000 --trust-uris",
    ),
    "dataset export": ("headrace dataset export data/plain out --format mds",),
    "dataset rebuild": ("headrace dataset rebuild data/plain 3f2a91 --trust-code --restore",),
    "dataset retract": (
        "headrace dataset retract data/plain doc-000042 doc-000077",
        "headrace dataset retract data/plain --source file:///corpus/leaked.jsonl",
    ),
    "dataset gc": ("headrace dataset gc data/plain --dry-run",),
    "dataset compact": ("headrace dataset compact data/plain data/plain-large --shard-mib 512",),
    "dataset rm": ("headrace dataset rm data/plain --yes",),
    "tokenizer train": ("headrace tokenizer train 'corpus/*.jsonl' tokenizer.json --vocab-size 32000",),
    "simulate": (
        "headrace simulate --seeds 1000",
        "headrace simulate --seed 417",
        "headrace simulate --mutant overlap-ignored",
    ),
    "chaos run": ("headrace chaos run examples/chaos/tasks.toml examples/plain.py -p input='corpus/*.jsonl' --seed 7",),
    "version": ("headrace version",),
}
