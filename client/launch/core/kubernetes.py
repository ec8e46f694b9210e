"""Pods of Kubernetes: one manifest of JSON, which `kubectl` reads as it reads YAML, and an image file.

A controller with a name of its own (a StatefulSet and a headless Service), a Deployment of workers, Secrets for the
cluster's folder and the token, and a Job that applies the pipeline. What the user says stands in the manifest as
strings, and in no shell: the scripts take it as arguments. The cluster's log lies in a store, so that a controller that
moves to another node knows its pipelines and its spent tokens.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.launch.core.asked import (
    CONTROLLER_FILES,
    OPERATOR_FILES,
    Call,
    File,
    Kubernetes,
    LaunchError,
    LaunchInput,
    LaunchPlan,
    known_as,
)

#: The user of the image, who is nobody else on the nodes.
USER = 65532
#: Nodes that the token lets in for each worker: a pod that moves to another node has another key.
JOINS_PER_WORKER = 16
#: Bytes of a pipeline file; a ConfigMap holds 1 MiB.
PIPELINE_BYTES_MAX = 1 << 20
HOME = "/run/headrace"
_PART_OF = "app.kubernetes.io/instance"
#: What is deleted at the end: all of these that bear the launch's label.
KINDS = ("job", "deployment", "statefulset", "service", "configmap", "secret")

#: The key must be this user's and closed to all others, which a mounted Secret is not.
_COPY = 'umask 077; mkdir -p "$HOME/cluster" && cp /secret/* "$HOME/cluster/" && '
_CONTROLLER = (
    f'{_COPY}exec "$1" controller --cluster "$HOME/cluster" --listen "0.0.0.0:$2" --advertise "$3" --root "$4"'
)
_WORKER = 'umask 077; command=$1; shift; exec "$command" worker --state "$HOME/member" "$@"'
_APPLY = (
    f'{_COPY}command=$1 workers=$2; shift 2; exec "$command" apply --cluster "$HOME/cluster" --workers "$workers" '
    '--wait /pipeline/pipeline.py "$@"'
)

CONTAINERFILE = """# The image of a launch: podman build -t IMAGE -f Containerfile .
FROM docker.io/library/python:3.12-slim
RUN pip install --no-cache-dir headrace==@version@
USER 65532:65532
ENTRYPOINT ["headrace"]
"""


def plan(launch: Kubernetes, given: LaunchInput) -> LaunchPlan:
    """The manifest, the image file, and the call that makes what it names."""
    if not launch.root or launch.root.startswith(("/", "file:")) or "://" not in launch.root:
        raise LaunchError(
            "--root: name a store of the cluster's log that every node reaches, such as s3://bucket/cluster"
        )
    if len(given.pipeline.encode()) > PIPELINE_BYTES_MAX:
        raise LaunchError(f"{launch.pipeline[0]}: more than {PIPELINE_BYTES_MAX:,} bytes are no pipeline file")
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": _items(launch, given)}, indent=1) + "\n"
    # `apply` would change the pods of another launch of this name.
    create = Call((*_kubectl(launch), "create", "-f", "-"), manifest.encode(), "manifest.json")
    files = (
        File("manifest.json", manifest),
        File("Containerfile", CONTAINERFILE.replace("@version@", given.version)),
    )
    return LaunchPlan(files, ((create,),), said=f"the controller is at {address(launch)}")


def stop(launch: Kubernetes, _answers: Mapping[str, str]) -> tuple[tuple[Call, ...], ...]:
    """Delete all that bears the launch's label, its Secrets too."""
    chosen = ("delete", ",".join(KINDS), "--selector", f"{_PART_OF}={known_as(launch)}", "--ignore-not-found")
    return ((Call((*_kubectl(launch), *chosen)),),)


def address(launch: Kubernetes) -> str:
    """The pod of the controller has a name of its own in the headless Service."""
    return f"{launch.name}-controller-0.{launch.name}-controller.{launch.namespace}.svc:{launch.port}"


def _kubectl(launch: Kubernetes) -> tuple[str, ...]:
    return ("kubectl", "--namespace", launch.namespace)


def _items(launch: Kubernetes, given: LaunchInput) -> list[dict[str, Any]]:
    cluster = {name: given.cluster[name] for name in CONTROLLER_FILES}
    items = [
        _secret(launch, "cluster", cluster),
        _secret(launch, "join", {"token": given.token}),
        _service(launch),
        _controller(launch),
        _workers(launch),
    ]
    if launch.pipeline:
        operator = {name: given.cluster[name] for name in OPERATOR_FILES}
        texts = {"data": {"pipeline.py": given.pipeline}}
        items += [
            _secret(launch, "operator", operator),
            _made(launch, "v1", "ConfigMap", "pipeline", texts),
            _job(launch),
        ]
    return items


def _made(launch: Kubernetes, version: str, kind: str, part: str, rest: Mapping[str, Any]) -> dict[str, Any]:
    labels = _labels(launch, part)
    metadata = {"name": f"{launch.name}-{part}", "namespace": launch.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _labels(launch: Kubernetes, part: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "headrace", _PART_OF: known_as(launch), "app.kubernetes.io/component": part}


def _secret(launch: Kubernetes, part: str, texts: Mapping[str, str]) -> dict[str, Any]:
    data = {name: base64.b64encode(text.encode("latin-1")).decode() for name, text in texts.items()}
    return _made(launch, "v1", "Secret", part, {"type": "Opaque", "data": data})


def _service(launch: Kubernetes) -> dict[str, Any]:
    ports = [{"name": "control", "port": launch.port}, {"name": "join", "port": launch.port + 1}]
    spec = {
        "clusterIP": "None",
        # A controller that is not ready has a name nevertheless: workers wait for it.
        "publishNotReadyAddresses": True,
        "selector": _labels(launch, "controller"),
        "ports": ports,
    }
    return _made(launch, "v1", "Service", "controller", {"spec": spec})


def _controller(launch: Kubernetes) -> dict[str, Any]:
    probe = {"tcpSocket": {"port": launch.port}, "periodSeconds": 10, "failureThreshold": 6}
    container = _container(
        launch,
        _CONTROLLER,
        (launch.headrace, str(launch.port), address(launch), launch.root),
        ports=[{"containerPort": launch.port}, {"containerPort": launch.port + 1}],
        readinessProbe=probe,
        livenessProbe={**probe, "initialDelaySeconds": 30},
    )
    spec = {
        "serviceName": f"{launch.name}-controller",
        "replicas": 1,
        "selector": {"matchLabels": _labels(launch, "controller")},
        "template": _pod(launch, "controller", container, secret="cluster"),  # noqa: S106 - a name
    }
    return _made(launch, "apps/v1", "StatefulSet", "controller", {"spec": spec})


def _workers(launch: Kubernetes) -> dict[str, Any]:
    joined = {"exec": {"command": ["/bin/sh", "-c", 'test -e "$HOME/member/member.json"']}, "periodSeconds": 10}
    token = {"secretKeyRef": {"name": f"{launch.name}-join", "key": "token"}}
    cores = ("--cores", str(launch.cores)) if launch.cores else ()
    container = _container(
        launch,
        _WORKER,
        (launch.headrace, *cores),
        variables=[{"name": "HEADRACE_JOIN_TOKEN", "valueFrom": token}],
        startupProbe={**joined, "failureThreshold": 60},
        readinessProbe=joined,
    )
    spec = {
        "replicas": launch.nodes,
        "selector": {"matchLabels": _labels(launch, "worker")},
        "template": _pod(launch, "worker", container),
    }
    return _made(launch, "apps/v1", "Deployment", "worker", {"spec": spec})


def _job(launch: Kubernetes) -> dict[str, Any]:
    container = _container(launch, _APPLY, (launch.headrace, str(launch.nodes), *launch.pipeline[1:]))
    container["volumeMounts"] += [{"name": "pipeline", "mountPath": "/pipeline", "readOnly": True}]
    pod = _pod(launch, "apply", container, secret="operator", restart="OnFailure")  # noqa: S106 - a name
    pod["spec"]["volumes"] += [{"name": "pipeline", "configMap": {"name": f"{launch.name}-pipeline"}}]
    # Until the controller serves, and while it moves, each try ends at once.
    return _made(launch, "batch/v1", "Job", "apply", {"spec": {"backoffLimit": 20, "template": pod}})


def _container(
    launch: Kubernetes, script: str, words: Sequence[str], variables: Sequence[Any] = (), **rest: Any
) -> dict[str, Any]:
    cpu = str(launch.cores or 1)
    credentials = [{"secretRef": {"name": launch.credentials}}] if launch.credentials else []
    return {
        "name": "headrace",
        "image": launch.image,
        "command": ["/bin/sh", "-c", script, "headrace", *words],
        "env": [
            {"name": "HOME", "value": HOME},
            {"name": "HEADRACE_RUNTIME_DIR", "value": f"{HOME}/sockets"},
            *variables,
        ],
        "envFrom": credentials,
        "resources": {
            "requests": {"cpu": cpu, "memory": launch.memory},
            "limits": {"memory": launch.memory, **({"cpu": cpu} if launch.cores else {})},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "home", "mountPath": HOME}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
        **rest,
    }


def _pod(
    launch: Kubernetes, part: str, container: dict[str, Any], secret: str = "", restart: str = "Always"
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "home", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if secret:
        volumes += [{"name": "secret", "secret": {"secretName": f"{launch.name}-{secret}", "defaultMode": 0o440}}]
        container["volumeMounts"] += [{"name": "secret", "mountPath": "/secret", "readOnly": True}]
    spec = {
        "automountServiceAccountToken": False,
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"labels": _labels(launch, part)}, "spec": spec}
