"""A CDI specification as the container runtime checks it, written after the sources.

Sources: cncf-tags/container-device-interface, schema/schema.json and defs.json (fields; the runtime also refuses
unknown fields, `ParseSpec` in pkg/cdi/spec.go), specs-go/version.go (which field needs which version),
pkg/cdi/container-edits.go (names of hooks, absolute paths).
"""

from typing import Any

Document = dict[str, Any]

_EDITS = {"env", "deviceNodes", "mounts", "hooks"}
_NODE = {"path", "hostPath"}
_MOUNT = {"hostPath", "containerPath", "options"}
_HOOK = {"hookName", "path", "args", "env"}
_HOOK_NAMES = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}


def assert_valid(spec: Document) -> None:
    """Fail for a specification that a container runtime would refuse, or with a version higher than needed."""
    assert spec.keys() == {"cdiVersion", "kind", "devices", "containerEdits"}
    names = [device["name"] for device in spec["devices"]]
    assert names
    assert len(set(names)) == len(names)
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    assert all(device.keys() == {"name", "containerEdits"} for device in spec["devices"])
    for each in edits:
        _assert_edits(each)
    uses_host_path = any("hostPath" in node for each in edits for node in each.get("deviceNodes", ()))
    assert spec["cdiVersion"] == ("0.5.0" if uses_host_path else "0.3.0")


def _assert_edits(edits: Document) -> None:
    assert edits
    assert edits.keys() <= _EDITS
    assert all("=" in each for each in edits.get("env", ()))
    for node in edits.get("deviceNodes", ()):
        assert {"path"} <= node.keys() <= _NODE
        assert all(path.startswith(("/dev/", "/run/")) for path in node.values())
    for mount in edits.get("mounts", ()):
        assert mount.keys() == _MOUNT
        assert all(mount[key].startswith("/") for key in ("hostPath", "containerPath"))
    for hook in edits.get("hooks", ()):
        assert {"hookName", "path", "args"} <= hook.keys() <= _HOOK
        assert hook["hookName"] in _HOOK_NAMES
        assert hook["path"].startswith("/")
        assert hook["args"][0] == hook["path"].rpartition("/")[2]
