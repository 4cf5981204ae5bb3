"""Manifests that people paste: which pod they describe, and what is refused."""

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.kube.manifest import LARGEST, ManifestError, manifest_pod
from gpushare_plugin.kube.pods import judged_pod

SPEC = """
    metadata: {annotations: {nvidia.com/use-gputype: A100}, creationTimestamp: null}
    spec:
      nodeName: elsewhere
      nodeSelector: {zone: a}
      tolerations: [{key: gpu, operator: Exists, tolerationSeconds: 5}]
      containers:
      - name: main
        env:
        resources: {limits: {aliyun.com/gpu-mem: 5, cpu: 0.5}}
"""


def deployment(kind: str = "Deployment") -> str:
    """Return an object with a template of a pod."""
    return f"apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: train}}\nspec:\n  template:{SPEC}"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "ReplicaSet"])
def test_the_template_is_the_pod(kind: str) -> None:
    """Amounts as numbers count, annotations and constraints too; a node that the manifest names does not."""
    found = manifest_pod(deployment(kind).encode())
    pod = judged_pod(found.pod)
    assert found.label == f"{kind} train"
    assert (dict(pod.request.amounts), pod.request.wishes.models) == ({"aliyun.com/gpu-mem": 5}, ("a100",))
    assert (pod.node, pod.needs.constraints.selector) == (None, (("zone", "a"),))
    assert [each.key for each in pod.needs.constraints.tolerations] == ["gpu"]


def test_a_pod_in_json_is_read() -> None:
    """JSON is YAML."""
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    text = json.dumps({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}})
    assert judged_pod(manifest_pod(text.encode()).pod).request.amounts == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "0 documents found"),
        ("kind: Service", "the kind Service, expected one of CronJob, DaemonSet"),
        ("a: b", "no kind"),
        ("kind: [Pod]", "the kind ['Pod']"),
        ("kind: Pod", "describes no pod"),
        ("kind: Deployment\nspec: {template: 5}", "describes no pod"),
        ("kind: Pod\nspec: {containers: 5}", "Expected `array`, got `int`"),
        ("kind: Pod\n---\nkind: Pod", "2 documents found"),
        ("{", "is no YAML"),
        ("a: &a [1]\nb: *a", "the alias *a"),
        ("[" * 5000, "more than 50 levels"),
        ("a" * (LARGEST + 1), "65,537 bytes, 65,536 at most"),
        ("!!python/object/apply:os.system [id]", "is no YAML"),
    ],
)
def test_what_is_no_pod_is_refused_in_words(text: str, told: str) -> None:
    """Nothing is run, nothing grows, and the message says what to paste."""
    with pytest.raises(ManifestError, match=re.escape(told)):
        manifest_pod(text.encode())


@given(st.binary(max_size=200) | st.text(alphabet="{}[]:-&*!|>'\"\n #akindPo1,%@`?", max_size=80).map(str.encode))
def test_any_bytes_are_a_pod_or_a_mistake(content: bytes) -> None:
    """No content is another error."""
    with contextlib.suppress(ManifestError):
        manifest_pod(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["metadata", "spec", "containers", "resources", "limits", "labels", "name", "affinity"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_spec_is_a_pod_or_a_mistake(spec: object) -> None:
    """A pod that is read has a request."""
    try:
        found = manifest_pod(json.dumps({"kind": "Pod", "spec": spec}).encode())
    except ManifestError:
        return
    judged_pod(found.pod)
