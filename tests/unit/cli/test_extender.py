"""Tests of `gpushare_plugin.cli.commands.cluster.extender`: what ends it at the start."""

import pytest
from click.testing import CliRunner

from gpushare_plugin.cli.commands.cluster.extender import command


@pytest.mark.parametrize("probe", [":32766", "127.0.0.1:32766"])
def test_the_same_port_for_both_addresses_is_rejected(probe: str) -> None:
    """Only one of them could be served."""
    done = CliRunner().invoke(command, ["--probe-address", probe])
    assert done.exit_code == 2
    assert f"--listen-address :32766 and --probe-address {probe} are the same port" in done.output
