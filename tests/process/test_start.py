"""The start of a daemon: what waits until the kubelet knows the resources of the daemon."""

import os
import tempfile
from pathlib import Path

import grpc

from gpushare_plugin.kubelet.api import deviceplugin_pb2 as api
from gpushare_plugin.kubelet.api import deviceplugin_pb2_grpc as rpc
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET
from gpushare_plugin.testing.kubelet.socket_server import SocketServer
from tests.process.daemon import process

NOTED = """
import pathlib, sys
class Look:
    def find_spec(self, name, path=None, target=None):
        if name == "gpushare_plugin.node.pods.usage":
            pathlib.Path("{file}").touch()
sys.meta_path.insert(0, Look())
"""
"""Makes a file when the daemon imports what follows the usage of GPUs; Python runs this before the program."""


class Kubelet(rpc.RegistrationServicer):
    """Notes at each registration whether `file` is there."""

    def __init__(self, file: Path) -> None:
        """Prepare to look for `file`."""
        self.file = file
        self.early: list[bool] = []

    async def Register(  # noqa: N802 - fixed by gRPC
        self,
        request: api.RegisterRequest,  # noqa: ARG002 - fixed by gRPC
        context: grpc.aio.ServicerContext[api.RegisterRequest, api.Empty],  # noqa: ARG002 - as above
    ) -> api.Empty:
        """Look for the file."""
        self.early.append(self.file.exists())
        return api.Empty()


async def test_what_follows_usage_is_imported_after_the_registration(tmp_path: Path) -> None:
    """The kubelet gets the registration of every resource before the daemon imports what no registration needs."""
    file = tmp_path / "imported"
    (tmp_path / "sitecustomize.py").write_text(NOTED.format(file=file))
    gpus = tmp_path / "gpus.yaml"
    gpus.write_text("gpus:\n- memory: 16GiB\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as short:  # the path of a socket has at most 107 bytes
        kubelet, server = Kubelet(file), SocketServer(Path(short, "plugins", KUBELET_SOCKET))
        rpc.add_RegistrationServicer_to_server(kubelet, server.grpc)
        await server.start()
        options = ("--simulate", gpus, "--device-plugin-path", server.path.parent)
        try:
            async with process("run", *options, environment={"PYTHONPATH": paths}) as daemon:
                await daemon.until(lambda: kubelet.early and file.exists(), "usage was followed")
        finally:
            await server.stop(leave_socket=False)
    assert kubelet.early[0] is False
