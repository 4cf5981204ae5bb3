"""GPUs by claim: what the daemons can do at the API server, the directories of the kubelet, and DeviceClasses."""

from typing import Any

import helm_python
import pytest

from gpushare_plugin.kubelet.device_plugin.succession import LONGEST_HANDOVER
from gpushare_plugin.kubelet.dra_plugin.plugin import LONGEST_CALLS
from gpushare_plugin.kubelet.paths import DEFAULT_PLUGIN_DIRECTORY
from gpushare_plugin.testing.cluster import Permission
from gpushare_plugin.testing.cluster.rbac import granted
from tests.chart.admission import AdmissionRequest, Policy
from tests.chart.reading import daemonset, environment
from tests.chart.rendering import objects, templates

DRIVER = "gpu.gpushare.io"
ON: dict[str, Any] = {"dra": {"enabled": True}}
GUARDED: dict[str, Any] = {**ON, "cluster": {"admissionPolicy": True}}
DAEMON = "system:serviceaccount:kube-system:gpushare"
GROUP = "resource.k8s.io"

Object = dict[str, Any]


def kinds(values: dict[str, Any], kind: str) -> list[Object]:
    """Return the objects of a kind that the chart makes."""
    return [each for each in objects(values) if each["kind"] == kind]


def mounts(values: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the directory of the host, and what has to be there, by the path in the container."""
    spec = daemonset(values)["spec"]["template"]["spec"]
    volumes = {each["name"]: each.get("hostPath") or {} for each in spec["volumes"]}
    found = ((each["mountPath"], volumes[each["name"]]) for each in spec["containers"][0]["volumeMounts"])
    return {path: (str(host.get("path")), str(host.get("type"))) for path, host in found}


def test_without_dra_nothing_of_it_is_there() -> None:
    """No right, no directory, no class, no policy."""
    text = "\n".join(map(str, objects({"cluster": {"admissionPolicy": True}})))
    assert not any(word in text for word in (GROUP, "plugins_registry", "DeviceClass"))


def test_without_dra_daemons_still_see_which_gpus_belong_to_claims() -> None:
    """The copies of the ledger are in the plugin directory, so that no change of values gives away a GPU of claims."""
    path = str(DEFAULT_PLUGIN_DIRECTORY)
    for values in ({}, ON):
        mounted = daemonset(values)["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        assert [each for each in mounted if each["mountPath"] == path] == [
            {"name": "device-plugins", "mountPath": path}
        ]
        assert mounts(values)[path] == (path, "Directory")


def test_daemons_have_the_rights_that_they_use_and_no_more() -> None:
    """Those of tests/unit/kube/dra, which run with them; of the status, those of 1.36, for the own DRA driver."""
    found = granted(objects(ON), "gpushare") - granted(objects(), "gpushare")
    slices = {
        Permission(verb, "resourceslices", group=GROUP) for verb in ("list", "watch", "create", "patch", "delete")
    }
    assert found == slices | {
        Permission("get", "resourceclaims", group=GROUP),
        Permission("list", "resourceclaims", group=GROUP),
        Permission("patch", "resourceclaims/status", group=GROUP),
        Permission("associated-node:patch", "resourceclaims/driver", name=DRIVER, group=GROUP),
    }


@pytest.mark.parametrize("root", ["/var/lib/kubelet", "/data/kubelet/"])
def test_the_kubelet_and_the_daemon_see_the_sockets_at_the_same_path(root: str) -> None:
    """The daemon tells the kubelet the path of its socket; it sees no directory of other DRA drivers."""
    found = mounts({**ON, "kubeletRootDir": root})
    root = root.rstrip("/")
    for path, kind in (("plugins_registry", "Directory"), (f"plugins/{DRIVER}", "DirectoryOrCreate")):
        assert found[f"{root}/{path}"] == (f"{root}/{path}", kind)
    assert f"{root}/plugins" not in found
    assert environment({**ON, "kubeletRootDir": root})["KUBELET_ROOT"] == root


@pytest.mark.parametrize("surge", [0, 1])
def test_calls_for_claims_have_time_to_end(surge: int) -> None:
    """Kubernetes kills no daemon that still answers the kubelet, whether the next daemon stands by or not."""
    rolling = {"maxSurge": surge, "maxUnavailable": 1 - surge}
    spec = daemonset({**ON, "updateStrategy": {"rollingUpdate": rolling}})["spec"]["template"]["spec"]
    longest = LONGEST_CALLS + (LONGEST_HANDOVER if surge else 0)
    assert spec["terminationGracePeriodSeconds"] > longest


@pytest.mark.parametrize("strategy", [None, ["cdi-cri"]])
def test_the_daemon_can_write_cdi_files_of_claims(strategy: list[str] | None) -> None:
    """In the directory of specifications that change, once, whatever else is done with CDI."""
    spec = daemonset({**ON, "deviceListStrategy": strategy})["spec"]["template"]["spec"]
    (found,) = (each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == "/var/run/cdi")
    assert "readOnly" not in found
    assert environment({**ON, "deviceListStrategy": strategy})["CDI_SPEC_DIRS"].endswith("/var/run/cdi")
    assert len({each["name"] for each in spec["volumes"]}) == len(spec["volumes"])


def test_classes_select_by_what_every_device_has() -> None:
    """The expression of a class about an attribute that a device lacks would keep pods from being scheduled."""
    classes = {each["metadata"]["name"]: each["spec"]["selectors"] for each in kinds(ON, "DeviceClass")}
    assert classes.keys() == {DRIVER, *(f"{name}.{DRIVER}" for name in ("shared", "unlimited", "whole", "mig"))}
    other = {
        each["metadata"]["name"] for each in kinds({"dra": {**ON["dra"], "driver": "g.example.com"}}, "DeviceClass")
    }
    assert "whole.g.example.com" in other


def a_resource_slice(node: str = "gpu-1", pool: str = "gpu-1", driver: str = DRIVER) -> Object:
    """Return a ResourceSlice."""
    return {"metadata": {"name": "s"}, "spec": {"nodeName": node, "driver": driver, "pool": {"name": pool}}}


def rejected(policy: str, request: AdmissionRequest) -> int:
    """Return how many things a policy has against a request."""
    return len(Policy(GUARDED, policy).objections(request))


def by_daemon(resource: str, operation: str, found: Object | None, before: Object | None = None) -> AdmissionRequest:
    """Return a request of the daemon on gpu-1."""
    extra = {"authentication.kubernetes.io/node-name": ["gpu-1"]}
    return AdmissionRequest(resource, operation, found, before, DAEMON, extra)


def test_a_daemon_writes_resource_slices_of_its_own_node() -> None:
    """Nor can it take the pool of another node, or delete anything of others."""
    ours = a_resource_slice()
    for request in (
        by_daemon("resourceslices", "CREATE", ours),
        by_daemon("resourceslices", "UPDATE", ours, ours),
        by_daemon("resourceslices", "DELETE", None, ours),
    ):
        assert rejected("gpushare-resource-slices", request) == 0
    for wrong in (a_resource_slice(node="gpu-2"), a_resource_slice(pool="gpu-2"), a_resource_slice(driver="d.com")):
        for request in (
            by_daemon("resourceslices", "CREATE", wrong),
            by_daemon("resourceslices", "UPDATE", wrong, wrong),
            by_daemon("resourceslices", "DELETE", None, wrong),
        ):
            assert rejected("gpushare-resource-slices", request) == 1
    everywhere = {"metadata": {"name": "s"}, "spec": {"allNodes": True, "driver": DRIVER, "pool": {"name": "gpu-1"}}}
    assert rejected("gpushare-resource-slices", by_daemon("resourceslices", "CREATE", everywhere)) == 1
    unbound = AdmissionRequest("resourceslices", "CREATE", ours, None, DAEMON)
    assert rejected("gpushare-resource-slices", unbound) == 2  # its node and its pool
    kubelet = AdmissionRequest("resourceslices", "DELETE", None, ours, "system:node:gpu-1")
    assert rejected("gpushare-resource-slices", kubelet) == 0


def a_claim(*devices: Object, **status: Any) -> Object:
    """Return a claim with what DRA drivers say of its devices."""
    return {"metadata": {"name": "c"}, "status": {"allocation": {"devices": {}}, "devices": list(devices), **status}}


def test_a_daemon_writes_of_a_claim_only_what_became_of_its_own_devices() -> None:
    """Before 1.36 the right on the status alone would let it allocate claims, and speak for other nodes."""
    ours = {"driver": DRIVER, "pool": "gpu-1", "device": "gpu-0"}
    nic = {"driver": "nic.example.com", "pool": "gpu-1", "device": "nic-0"}
    there = {"driver": DRIVER, "pool": "gpu-2", "device": "gpu-0"}

    def objections(before: Object, after: Object) -> int:
        return rejected("gpushare-claims", by_daemon("resourceclaims/status", "UPDATE", after, before))

    bare = {"metadata": {"name": "c"}, "status": {"allocation": {"devices": {}}}}
    assert objections(bare, a_claim(ours)) == 0
    assert objections(a_claim(nic, there, ours), a_claim(nic, there, {**ours, "data": {}})) == 0
    assert objections(a_claim(ours), bare) == 0
    for wrong in (a_claim(nic), a_claim(there), a_claim(reservedFor=[]), a_claim(allocation=None)):
        assert objections(bare, wrong) == 1
    assert objections(a_claim(nic, ours), a_claim(ours)) == 1


def test_values_that_contradict_each_other_are_rejected() -> None:
    """With what to change."""
    share = {"memory": {"resources": [{"name": "a.com/b"}]}}
    for values, message in (
        ({**ON, "cluster": {"enabled": False}}, "dra.enabled is true, but cluster.enabled is false"),
        ({**ON, "cdi": {"specDirs": []}}, "dra.enabled is true, but cdi.specDirs is empty"),
        ({"dra": {"enabled": True, "driver": "gpu.nvidia.com"}}, "dra.driver is gpu.nvidia.com, the name of NVIDIA's"),
        (
            {"config": {"map": {"a": {"dra": {}, "sharing": share}}}},
            "config.map.a gives GPUs by claim, but dra.enabled.*to turn claims off, remove dra from the config first",
        ),
        (
            {**ON, "config": {"map": {"a": {"dra": {"driver": "d.example.com"}, "sharing": share}}}},
            "config.map.a has the DRA driver d.example.com, but dra.driver of the chart is gpu.gpushare.io",
        ),
    ):
        with pytest.raises(helm_python.HelmError, match=message):
            objects(values)


def notes(values: dict[str, Any]) -> str:
    """Return what Helm prints, on one line."""
    return " ".join(templates(values)["NOTES.txt"].split())


def config(dra: object) -> dict[str, Any]:
    """Return values with a config that has this section `dra`."""
    return {"config": {"map": {"mine": {"dra": dra}}, "default": "mine"}}


def test_notes_say_where_claims_get_no_gpu() -> None:
    """Without a section `dra`, where the section is empty, and on nodes with automatic partitioning."""
    none, partitioned = "no config has a section dra", "gpu-partitioning give no GPU by claim"
    empty = "The section dra of config mine is empty and has no effect"
    assert not any(each in notes({}) for each in (none, partitioned, empty, "resourceslices"))
    assert f"--field-selector spec.driver={DRIVER}" in notes({**ON, **config({})})
    assert none in notes(ON)
    assert all(each in notes({**ON, **config(None)}) for each in (none, empty))
    assert empty in notes(config(None))
    dividing = {"partitioning": {"enabled": True}, "mps": {"enabled": True}}
    assert partitioned in notes({**ON, **config({}), **dividing})
    assert not any(each in notes({**ON, **config({})}) for each in (none, partitioned, empty))
