"""The manifest is what the API of Kubernetes takes, by its own schema, of which a package has a copy."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from headrace.client.launch.core.asked import Kubernetes, LaunchInput
from headrace.client.launch.core.plan import LAUNCHERS

#: A Python with the package kubernetes-validate, which is too large for every environment.
PYTHON = os.environ.get("HEADRACE_TEST_KUBERNETES_PYTHON", "")
VALIDATE = """import json, sys
import kubernetes_validate as schema

for item in json.load(sys.stdin)["items"]:
    schema.validate(item, schema.latest_version(), strict=True)
    try:
        schema.validate({**item, "spek": 1}, schema.latest_version(), strict=True)
    except schema.ValidationError:
        print(item["kind"])
"""


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="HEADRACE_TEST_KUBERNETES_PYTHON names no Python with kubernetes-validate")
@pytest.mark.parametrize("pipeline", [(), ("p.py", "-p", "a=b")], ids=["start", "run"])
@pytest.mark.parametrize("rest", [{}, {"cores": 2, "credentials": "aws", "memory": "64Gi"}], ids=["plain", "all"])
def test_every_object_of_the_manifest_fits_its_schema(
    tmp_path: Path, pipeline: tuple[str, ...], rest: dict[str, object]
) -> None:
    common = {"name": "press", "folder": "/l", "cwd": "/c", "nodes": 2, "namespace": "n", "image": "r/h:1"}
    asked = Kubernetes(**common, root="s3://b/c", pipeline=pipeline, **rest)  # type: ignore[arg-type]
    manifest = LAUNCHERS["kubernetes"].plan(asked, LaunchInput()).files[0].text
    done = subprocess.run([PYTHON, "-c", VALIDATE], input=manifest, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [item["kind"] for item in json.loads(manifest)["items"]]
