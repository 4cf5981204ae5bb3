"""gpushare's own CDI specification, resolved by podman: a real implementation of CDI, without a card.

podman writes the configuration of the container (config.json of the OCI runtime) before it starts the container, which
may then fail here: no library of the driver exists. It looks in /etc/cdi and /var/run/cdi only, so the test gives it a
/run of its own. Source: `InjectDevices` in cncf-tags/container-device-interface, pkg/cdi/cache.go, which podman calls.
"""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.testing.hosts import DRIVER
from tests.hosts import UUIDS, Host, two_gpus

SCRIPT = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/cdi
cp "$1" /run/cdi/
podman="podman --root $2/root --runroot /run/podman --cgroup-manager cgroupfs --storage-driver vfs"
$podman create --name tried --network host --device "$3" --rootfs / true
$podman init tried || true
cat "$2"/root/vfs-containers/*/userdata/config.json
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with real device nodes of no driver; skip the test where that cannot be."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("needs podman, and the rights of root")
    host = Host("kubeadm", tmp_path, without=["/run/cdi/nvidia.yaml"])
    for minor, path in enumerate(sorted((host.root / "dev").iterdir())):
        path.unlink()
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, minor))
        except OSError as error:
            pytest.skip(f"needs the right to make device nodes: {error}")
    host.flags["nvidiaDevRoot"] = str(host.root)
    host.cdi().look(two_gpus(), host.settings())
    return host


def resolved(host: Host, device: str) -> subprocess.CompletedProcess[str]:
    """Have podman make a container with a CDI device; the output ends with the configuration of the container."""
    command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(host.own), str(host.root), device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    return done


def test_podman_gives_a_container_what_the_specification_says(host: Host) -> None:
    """The device node of this GPU and of no other, control devices, libraries, hooks and the variable arrive."""
    done = resolved(host, f"gpushare/gpu={UUIDS[1]}")
    config: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    nodes = {each["path"]: (each["major"], each["minor"]) for each in config["linux"]["devices"]}
    assert nodes["/dev/nvidia1"] == (195, 2)
    assert "/dev/nvidiactl" in nodes
    assert "/dev/nvidia0" not in nodes
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{DRIVER}"
    (mount,) = [each for each in config["mounts"] if each["destination"] == library]
    assert (mount["source"], "ro" in mount["options"]) == (library, True)
    assert "NVIDIA_VISIBLE_DEVICES=void" in config["process"]["env"]
    assert [hook["args"][1] for hook in config["hooks"]["createContainer"]] == ["create-symlinks", "update-ldcache"]


def test_podman_refuses_a_device_that_no_specification_has(host: Host) -> None:
    """The words that docs/cdi.md and our warnings quote are those of the container runtime."""
    assert "unresolvable CDI devices" in resolved(host, "gpushare/gpu=GPU-no-such").stderr
