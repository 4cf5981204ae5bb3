"""`gpushare partition`: decides the slices of GPUs for waiting pods."""

import math
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.cli.daemons import daemon_log, run_daemon
from gpushare_plugin.cli.options import (
    kubeconfig_option,
    log_format_option,
    log_level_option,
    option,
    probe_address_option,
)
from gpushare_plugin.core.policies import DEFAULT_POLICY, POLICIES
from gpushare_plugin.partition.taking_back import DEFAULT_PATIENCE, LEAST_PATIENCE, MOST_PATIENCE
from gpushare_plugin.partitioner.service import PartitionerSettings, run


class _SecondsRange(click.FloatRange):
    """A number of seconds in a range, never `nan`; click takes `nan` to be within every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fail for `nan`."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"found {value!r}, a number of seconds expected", param, ctx)
        return found


@click.command("partition", short_help="Decide which GPU slices nodes make until SIGTERM.")
@option(
    "--placement",
    "Policy for the GPU of a new slice, unless the pod or its node names another.",
    type=click.Choice(tuple(POLICIES)),
    default=DEFAULT_POLICY,
)
@option(
    "--patience",
    "Seconds for a pod to take its slice before another node is tried.",
    metavar="SECONDS",
    type=_SecondsRange(min=LEAST_PATIENCE, max=MOST_PATIENCE),
    default=DEFAULT_PATIENCE,
)
@option(
    "--lease-namespace",
    "Namespace of the Lease gpushare-partitioner.",
    metavar="NAMESPACE",
    default="kube-system",
)
@probe_address_option
@kubeconfig_option
@log_format_option
@log_level_option
def command(
    placement: str,
    patience: float,
    lease_namespace: str,
    probe_address: str | None,
    kubeconfig: Path | None,
    **options: Any,
) -> None:
    """Have the daemons of labelled nodes make the slices that pods wait for."""
    with daemon_log(options["log_format"], options["log_level"]) as log:
        settings = PartitionerSettings(
            namespace=lease_namespace,
            probe_address=probe_address,
            policy=placement,
            patience=patience,
            kubeconfig=kubeconfig,
        )
        run_daemon(run(settings), log)
