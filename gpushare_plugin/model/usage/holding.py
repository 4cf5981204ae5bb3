"""What containers hold, as the kubelet shows it."""

from gpushare_plugin.foundation.structs import Struct


class Holding(Struct, frozen=True):
    """The units of one resource that one container holds; `ids` are the IDs of these units.

    `uid` is the pod's UID as the kubelet has it, `container_id` the container's ID as its runtime has it; each is empty
    where it is not known.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    ids: frozenset[str]
    uid: str = ""
    container_id: str = ""
