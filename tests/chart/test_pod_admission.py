"""The policies for pods: who may set what gpushare sets, and which scheduler pods get. Their CEL is evaluated."""

import re
from typing import Any

import pytest
import yaml

from gpushare_plugin.config.schema.isolations import IsolationName
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.escapes import OWN_NAMES, OWN_PREFIXES
from gpushare_plugin.core.grant import AllocatedGpu, Allocation, Grant
from gpushare_plugin.ledger import annotations as names
from gpushare_plugin.sharing.isolation.layer import Limits, NodeMeans, isolate
from gpushare_plugin.sharing.isolation.table import ISOLATIONS
from tests.chart.admission import AdmissionRequest, Policy
from tests.chart.rendering import objects, templates
from tests.nodes import a_gpu
from tests.unit.ledger.objects import by_the_daemon, by_the_extender

ON: dict[str, Any] = {"admission": {"pods": True}, "scheduler": {"enabled": True}}
OWN_SCHEDULER: dict[str, Any] = {
    "admission": {"schedulerName": True},
    "scheduler": {"enabled": True, "kubeScheduler": {"enabled": True}},
}
DAEMON = "system:serviceaccount:kube-system:gpushare"
EXTENDER = "system:serviceaccount:kube-system:gpushare-extender"
OURS = [*(by_the_extender() | by_the_daemon())]
"""The annotations that the extender or the daemon writes."""


def container(name: str = "main", units: Any = 5, **variables: Any) -> dict[str, Any]:
    """Return a container that asks for so many units, or for nothing, and sets variables."""
    made: dict[str, Any] = {"name": name, "image": "a"}
    if units is not None:
        made["resources"] = {"limits": {"aliyun.com/gpu-mem": str(units), "cpu": "1"}}
    if variables:
        made["env"] = [{"name": key, "value": value} for key, value in variables.items()]
    return made


def pod(*containers: dict[str, Any], annotations: Any = None, **spec: Any) -> dict[str, Any]:
    """Return a pod as the API server has it before it is written."""
    metadata: dict[str, Any] = {"name": "p", "namespace": "default"}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": list(containers) or [container()], **spec}}


def created(made: dict[str, Any], user: str = "jane", values: dict[str, Any] | None = None) -> list[str]:
    """Return why a pod may not be created."""
    return Policy(values or ON, "gpushare-user-pods").objections(AdmissionRequest("pods", "CREATE", made, user=user))


def updated(before: dict[str, Any], after: dict[str, Any], user: str = "jane", resource: str = "pods") -> list[str]:
    """Return why a pod may not be changed."""
    return Policy(ON, "gpushare-user-pods").objections(AdmissionRequest(resource, "UPDATE", after, before, user))


def test_the_policies_are_there_only_on_request() -> None:
    """Clusters older than the API can install the chart, also with the extender."""
    made = objects({"scheduler": {"enabled": True, "kubeScheduler": {"enabled": True}}})
    assert not [each for each in made if "Admission" in each["kind"]]


def test_ordinary_pods_are_admitted() -> None:
    """A share without variables, and variables without a share: the latter is for the container toolkit to judge."""
    assert created(pod()) == []
    assert created(pod(container(PATH="/bin"), annotations={"team": "a"}, initContainers=[container("init")])) == []
    assert created(pod(container(units=None, NVIDIA_VISIBLE_DEVICES="all"))) == []


@pytest.mark.parametrize(
    "variable",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "ALIYUN_COM_GPU_MEM_CONTAINER",
        "ALIYUN_COM_GPU_MEM_IDX",
        "CUDA_DISABLE_CONTROL",
        "CUDA_REDIRECT",
        "CUDA_TASK_PRIORITY",
        "GPU_CORE_UTILIZATION_POLICY",
        "NVIDIA_GPU_MEMORY_LIMIT",
        "NVIDIA_GPU_MEMORY_REQUEST",
    ],
)
def test_variables_that_gpushare_sets_cannot_be_set_by_pods(variable: str) -> None:
    """The message names container, variable and remedy; empty values override what was allocated, too."""
    (objection,) = created(pod(container(units=None), container("gpu", 5, **{variable: ""})))
    assert f"container gpu sets {variable}, which only gpushare may set: remove these variables" in objection


@pytest.mark.parametrize("name", ISOLATIONS)
def test_no_pod_sets_the_limits_of_an_isolation(name: IsolationName) -> None:
    """Each variable by which an isolation limits a container is one that the pod cannot set itself."""
    isolation, share = ISOLATIONS[name](Config(), Limits(), NodeMeans()), AllocatedGpu(a_gpu(0), 1, 4, 1024)
    limits = {*isolate(Grant(), Allocation("r", (share,), frozenset({"id"})), isolation.layers).environment}
    limits |= {variable} if (variable := isolation.compute_variable(share.gpu)) else set()
    free = [each for each in sorted(limits) if not created(pod(container(**{each: "1"})))]
    assert free == [], "gpushare.ownVariable in charts/gpushare/templates/_admission.tpl does not have them"


def test_every_container_of_a_pod_with_a_share_counts() -> None:
    """Init containers and those without a share of their own are in the same pod, on the same GPU."""
    made = pod(
        container(),
        container("side", None, NVIDIA_VISIBLE_DEVICES="all"),
        initContainers=[container("init", None, CUDA_MPS_PIPE_DIRECTORY="/tmp", NVIDIA_VISIBLE_DEVICES="0")],  # noqa: S108
    )
    (objection,) = created(made)
    assert "container side sets NVIDIA_VISIBLE_DEVICES; " in objection
    assert "container init sets CUDA_MPS_PIPE_DIRECTORY, NVIDIA_VISIBLE_DEVICES" in objection


@pytest.mark.parametrize(
    "variable",
    [
        "CUDA_DEVICE_ORDER",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES_2",
    ],
)
def test_variables_of_programs_are_theirs(variable: str) -> None:
    """What CUDA reads and gpushare does not set limits nothing: a pod may set it."""
    assert created(pod(container("main", 5, **{variable: "1"}))) == []


def test_shares_are_known_by_the_configs() -> None:
    """Every resource of the chart's configs is one, and those that are listed instead."""
    config = {
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "rename": "a.com/turn", "replicas": 2}]}}
    }
    turn = container(units=None, NVIDIA_VISIBLE_DEVICES="all")
    turn["resources"] = {"limits": {"a.com/turn": "1"}}
    assert created(pod(turn)) == []
    assert created(pod(turn), values={**ON, "config": {"map": {"default": config}}})
    assert created(pod(turn), values={**ON, "resourceNames": ["a.com/turn"]})


def test_a_pod_that_exists_can_be_updated() -> None:
    """One from before the policy keeps its variables; its labels and finalizers can change."""
    old = pod(container(NVIDIA_VISIBLE_DEVICES="all"), annotations={names.PROMISE: "{}"})
    assert updated(old, {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}) == []


def test_a_container_for_debugging_cannot_have_every_gpu() -> None:
    """Its environment is its own, and added later."""
    debugging = pod(
        ephemeralContainers=[{"name": "debug", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]
    )
    (objection,) = updated(pod(), debugging, resource="pods/ephemeralcontainers")
    assert "container debug sets NVIDIA_VISIBLE_DEVICES" in objection
    assert updated(pod(), pod(ephemeralContainers=[{"name": "debug"}]), resource="pods/ephemeralcontainers") == []


@pytest.mark.parametrize("key", OURS)
@pytest.mark.parametrize("resource", ["pods", "pods/status"])
def test_annotations_of_gpushare_cannot_be_forged(key: str, resource: str) -> None:
    """Nobody can create, add, change or remove them, also not with the status."""
    without, first, second = pod(), pod(annotations={key: "1"}), pod(annotations={key: "2", "a": "b"})
    for objections in (
        created(first),
        updated(without, first, resource=resource),
        updated(first, second, resource=resource),
        updated(first, without, resource=resource),
    ):
        said = [each.split(":")[0] for each in objections]
        assert said == [f"only gpushare writes the annotation {key}"], (
            "gpushare.ownAnnotation in templates/_admission.tpl"
        )
    assert updated(first, pod(annotations={key: "1", "a": "b"}), resource=resource) == []
    assert updated(without, first, DAEMON, resource) == []


@pytest.mark.parametrize("key", [names.PLACEMENT, names.HAMI_PLACEMENT, names.HAMI_UUIDS, names.HAMI_MODELS])
def test_wishes_can_be_written_by_users(key: str) -> None:
    """Users write what their pods may want."""
    assert created(pod(annotations={key: "spread"})) == []


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
def test_promises_can_be_written_by_the_extender_alone(resource: str) -> None:
    """A Binding copies its annotations to the pod past the other policy; other schedulers bind without ours."""
    policy = Policy(ON, "gpushare-bindings")
    plain = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    for key in OURS:
        forged = {**plain, "metadata": {"name": "p", "annotations": {key: "1"}}}
        refused = policy.objections(AdmissionRequest(resource, "CREATE", forged, user="system:kube-scheduler"))
        assert refused, f"gpushare.ownAnnotation in charts/gpushare/templates/_admission.tpl does not have {key}"
        assert policy.objections(AdmissionRequest(resource, "CREATE", forged, user=EXTENDER)) == []
    assert policy.objections(AdmissionRequest(resource, "CREATE", plain, user="system:kube-scheduler")) == []


def test_pods_with_a_share_get_the_scheduler() -> None:
    """Only where they have no other one, and no other pods; the value is set by a patch, whatever else the pod has."""
    policy = Policy(OWN_SCHEDULER, "gpushare-scheduler-name")
    for spec, concerned in (
        ({}, True),
        ({"schedulerName": "default-scheduler"}, True),
        ({"schedulerName": "x"}, False),
    ):
        assert policy.concerns(AdmissionRequest("pods", "CREATE", pod(**spec))) is concerned
    assert not policy.concerns(AdmissionRequest("pods", "CREATE", pod(container(units=None))))
    assert policy.patches(AdmissionRequest("pods", "CREATE", pod())) == [
        {"op": "add", "path": "/spec/schedulerName", "value": "gpushare-scheduler"}
    ]
    assert policy.spec["failurePolicy"] == "Ignore"


STRIPS: dict[str, Any] = {"admission": {"pods": True, "gpuVariables": "strip"}}


def stripped(made: dict[str, Any]) -> dict[str, Any]:
    """Return a new pod as the policy that removes variables leaves it."""
    changed: dict[str, Any] = Policy(STRIPS, "gpushare-gpu-variables").changed(AdmissionRequest("pods", "CREATE", made))
    return changed


def test_the_test_pod_of_aliyuns_guide_is_admitted_without_its_variable() -> None:
    """The guide's pod asks for every GPU beside its share; a pod that is stripped has nothing that is rejected."""
    made = pod(container("gpushare-test-pod", 5, NVIDIA_VISIBLE_DEVICES="all"), restartPolicy="OnFailure")
    assert created(made)
    assert created(stripped(made), values=STRIPS) == []
    without = pod({**container("gpushare-test-pod", 5), "env": []}, restartPolicy="OnFailure")
    assert stripped(made) == without


def test_every_container_loses_the_variable_and_nothing_else() -> None:
    """Init containers and those without a share, too; other containers and variables stay, in their order."""
    field = {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    chosen = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    by_field = {**field, "name": "NVIDIA_VISIBLE_DEVICES"}
    one, two, three = container("one"), container("two", None), container("three", A="1")
    one["env"] = [chosen, {"name": "A", "value": "1"}, {**chosen, "value": "0,1"}, field]
    two["env"] = [{"name": "A"}, by_field]
    first = {**container("first", None), "env": [{**chosen, "value": "GPU-a"}]}
    after = stripped(pod(one, two, three, initContainers=[container("zeroth"), first]))
    assert after == pod(
        {**one, "env": [{"name": "A", "value": "1"}, field]},
        {**two, "env": [{"name": "A"}]},
        three,
        initContainers=[container("zeroth"), {**first, "env": []}],
    )
    assert created(after, values=STRIPS) == []


def test_pods_without_a_share_keep_their_variables() -> None:
    """They may see every GPU, as a monitor does."""
    made = pod(container(units=None, NVIDIA_VISIBLE_DEVICES="all"))
    assert stripped(made) == made


@pytest.mark.parametrize(
    "variable", [{"NVIDIA_VISIBLE_DEVICES": each} for each in ("", "none", "void")] + [{"CUDA_DISABLE_CONTROL": "true"}]
)
def test_what_is_not_stripped_is_rejected(variable: dict[str, str]) -> None:
    """Limits are, and the wish for no GPU, in place of which the value of the image would hold."""
    made = pod(container(), container("side", None, **variable))
    assert stripped(made) == made
    assert created(made, values=STRIPS)


def test_a_container_for_debugging_loses_the_variable_when_it_is_added() -> None:
    """The containers that are there cannot change, and the API server rejects a request that changes them."""
    chosen = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    old, new = {"name": "old", "env": chosen}, {"name": "new", "env": chosen}
    main = container(NVIDIA_VISIBLE_DEVICES="all")
    before, after = pod(main, ephemeralContainers=[old]), pod(main, ephemeralContainers=[old, new])
    request = AdmissionRequest("pods/ephemeralcontainers", "UPDATE", after, before)
    policy = Policy(STRIPS, "gpushare-gpu-variables")
    assert policy.changed(request) == pod(main, ephemeralContainers=[old, {**new, "env": []}])
    alone = AdmissionRequest("pods/ephemeralcontainers", "UPDATE", pod(main, ephemeralContainers=[new]), pod(main))
    assert policy.changed(alone) == pod(main, ephemeralContainers=[{**new, "env": []}])
    assert not policy.concerns(AdmissionRequest("pods", "UPDATE", after, before))


def runtime_class(**values: Any) -> Policy:
    """Return the policy that sets runtimeClassName, of a chart with values."""
    on = {"admission": {"runtimeClassName": True}, "runtimeClassName": "nvidia-cdi"}
    return Policy({**on, **values}, "gpushare-runtime-class")


def asking_for(resource: str) -> AdmissionRequest:
    """Return the request to create a pod that asks for one of a resource, in an init container."""
    asking = {**container("init"), "resources": {"limits": {resource: "1"}}}
    return AdmissionRequest("pods", "CREATE", pod(container(units=None), initContainers=[asking]))


def test_pods_with_a_share_get_the_runtime_class() -> None:
    """Those that name none get the daemon's, and no other pods; where the policy fails, pods are created without."""
    policy = runtime_class()
    assert policy.concerns(AdmissionRequest("pods", "CREATE", pod()))
    assert policy.concerns(AdmissionRequest("pods", "CREATE", pod(runtimeClassName="")))
    assert not policy.concerns(AdmissionRequest("pods", "CREATE", pod(runtimeClassName="kata")))
    assert not policy.concerns(AdmissionRequest("pods", "CREATE", pod(container(units=None))))
    assert not policy.concerns(AdmissionRequest("pods", "UPDATE", pod(), pod()))
    assert policy.patches(AdmissionRequest("pods", "CREATE", pod())) == [
        {"op": "add", "path": "/spec/runtimeClassName", "value": "nvidia-cdi"}
    ]
    assert policy.spec["failurePolicy"] == "Ignore"


SIZES = {"sharing": {"mps": {"sizes": [{"slices": [{"size": "10gb", "count": 2}]}]}}}
OFFERED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "no config": ({}, set()),
    "a config": (
        {"config": {"map": {"a": SIZES}}, "mps": {"enabled": True}},
        {"nvidia.com/gpu", "nvidia.com/gpu-10gb"},
    ),
    "named resources": ({"resourceNames": ["a.com/turn"]}, {"a.com/turn"}),
    "partitioning": ({"partitioning": {"enabled": True}}, {"nvidia.com/gpu-10gb", "nvidia.com/gpu-40gb"}),
    "MIG": ({"migStrategy": "mixed"}, {"nvidia.com/mig-1g.5gb"}),
    "MIG on request": (
        {"partitioning": {"enabled": True, "mig": {"enabled": True}}},
        {"nvidia.com/gpu-10gb", "nvidia.com/gpu-40gb", "nvidia.com/mig-1g.5gb"},
    ),
}
NAMES = {
    *{name for _, names in OFFERED.values() for name in names},
    *{"nvidia.com/gpu-10gbs", "example.com/nvidia.com/gpu-10gb", "cpu", "amd.com/gpu"},
}


@pytest.mark.parametrize(("values", "ours"), OFFERED.values(), ids=OFFERED)
def test_shares_are_known_by_what_the_daemons_offer(values: dict[str, Any], ours: set[str]) -> None:
    """A pod that asks for a slice or an instance sets no variable of gpushare, where slices or instances are made."""
    aliyuns = set() if "resourceNames" in values else {"aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"}
    names = {*NAMES, "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"}

    def objections(resource: str) -> list[str]:
        asking = {**container(NVIDIA_VISIBLE_DEVICES="all"), "resources": {"limits": {resource: "1"}}}
        return created(pod(asking), values={**values, "admission": {"pods": True}})

    assert {name for name in names if objections(name)} == ours | aliyuns


@pytest.mark.parametrize(("values", "ours"), OFFERED.values(), ids=OFFERED)
def test_the_runtime_class_is_for_what_the_daemons_offer(values: dict[str, Any], ours: set[str]) -> None:
    """That are the names that the values have, Aliyun's where they name none, and slices and instances where made."""
    policy = runtime_class(**values)
    aliyuns = set() if "resourceNames" in values else {"aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"}
    names = {*NAMES, "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"}
    assert {name for name in names if policy.concerns(asking_for(name))} == ours | aliyuns


def test_the_notes_say_which_runtime_class_pods_need() -> None:
    """They say so where the daemon has one, no policy sets it for pods, and some pods get GPUs without `cdi-cri`."""
    named = {"runtimeClassName": "nvidia"}
    needed = "Request a share in a pod of yours, with runtimeClassName: nvidia in its spec:"
    assert needed in templates(named)["NOTES.txt"]
    by_cdi = {"flags": {"plugin": {"deviceListStrategy": "cdi-cri"}}, "version": "v1"}
    assert needed in templates({**named, "config": {"map": {"default": by_cdi, "b": {"version": "v1"}}}})["NOTES.txt"]
    for values in (
        {},
        {**named, "admission": {"runtimeClassName": True}},
        {**named, "deviceListStrategy": "cdi-cri"},
        {**named, "deviceListStrategy": ["envvar", "cdi-cri"]},
        {**named, "config": {"map": {"a": by_cdi}}},
    ):
        assert "Request a share in a pod of yours:" in templates(values)["NOTES.txt"]


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "schedulerName": ("gpushare-scheduler-name", {"schedulerName": True}),
    "runtimeClassName": ("gpushare-runtime-class", {"runtimeClassName": True}),
    "gpuVariables": ("gpushare-gpu-variables", {"pods": True, "gpuVariables": "strip"}),
}


@pytest.mark.parametrize("fields", [*([each] for each in CHANGES), [*CHANGES]], ids="-".join)
def test_each_policy_that_changes_pods_has_its_own_value(fields: list[str]) -> None:
    """Each is made by its own value, with a binding of its name, without which no policy is in force.

    A pod for which a policy fails is created as it is.
    """
    values: dict[str, Any] = {**OWN_SCHEDULER, "runtimeClassName": "nvidia", "admission": {"pods": True}}
    for field in fields:
        values["admission"].update(CHANGES[field][1])
    made = objects(values)
    policies = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "MutatingAdmissionPolicy"}
    bound = {each["spec"]["policyName"] for each in made if each["kind"] == "MutatingAdmissionPolicyBinding"}
    assert policies.keys() == bound == {CHANGES[field][0] for field in fields}
    for policy in policies.values():
        assert (policy["failurePolicy"], policy["reinvocationPolicy"]) == ("Ignore", "IfNeeded")


def test_a_long_reason_has_a_short_form() -> None:
    """An API server shows `message` where `messageExpression` comes to more than 5 KiB: with many variables."""
    made = objects({**ON, "cluster": {"admissionPolicy": True, "followPods": True}})
    policies = [each["spec"] for each in made if each["kind"] == "ValidatingAdmissionPolicy"]
    rules = [rule for policy in policies for rule in policy["validations"]]
    assert rules
    assert not [rule for rule in rules if not rule.get("message")]


def test_the_proof_knows_the_variables_that_pods_may_not_set() -> None:
    """What the policy rejects in a pod is what the daemon finds in a process, but for Aliyun's, which limit nothing."""
    (policy,) = (
        each
        for each in objects(ON)
        if each["metadata"]["name"] == "gpushare-user-pods" and each["kind"] == "ValidatingAdmissionPolicy"
    )
    text = yaml.safe_dump(policy["spec"], width=10_000)
    (listed,) = set(re.findall(r"variable[.]name in \[(.*?)\]", text))
    prefixes = re.findall(r"variable[.]name[.]startsWith\('+(\w+?)'+\)", text)
    assert set(re.findall(r"\w+", listed)) == OWN_NAMES
    assert set(prefixes) - {"ALIYUN_COM_GPU_MEM_"} == set(OWN_PREFIXES)
