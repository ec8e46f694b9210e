"""Controllers and workers on clusters that others run: Slurm, hosts by ssh, Ray, Kubernetes."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.client.launch.core.asked import (
        Kubernetes as Kubernetes,
        Launch as Launch,
        Ray as Ray,
        Slurm as Slurm,
        Ssh as Ssh,
    )
    from headrace.client.launch.launching import end_launch as end_launch, start_launch as start_launch
else:
    __getattr__ = door(__name__)
