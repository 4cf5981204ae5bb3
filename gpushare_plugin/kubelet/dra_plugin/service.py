"""The calls of the kubelet for claims, and the health of devices: from protobuf to claims and back.

The services v1 and v1beta1 have the same messages, but for `share_id`, which the older one does not have and skips.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.text import visible
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedDevice
from gpushare_plugin.kubelet.api import dra_health_pb2 as health_api
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api
from gpushare_plugin.kubelet.dra_plugin.claim_service import ClaimService, DeviceHealth
from gpushare_plugin.kubelet.serving.calls import Calls
from gpushare_plugin.kubelet.serving.own_socket import Options

SERVER_OPTIONS: Options = (
    # All claims of one pod: some hundred bytes each.
    ("grpc.max_receive_message_length", 1024 * 1024),
    # More calls wait in the kubelet until others have ended.
    ("grpc.max_concurrent_streams", 512),
    # No limit to idle connections: a kubelet deletes the ResourceSlices of a DRA driver without a connection.
)
"""Options of the gRPC server for claims."""

HEALTH_SECONDS = 10.0
"""Seconds after which the health is sent again: a kubelet takes no report for longer than 30 s for true.

The kubelet forgets the health of all devices when another instance of the DRA driver ends its stream; the next report
mends that (kubernetes: pkg/kubelet/cm/dra/healthinfo.go and manager.go).
"""

_VERSIONS = ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin")
_HEALTH = health_api.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name

MOST_CLAIMS = 256
"""Claims of one call, which has the claims of one pod."""

_UID = re.compile(r"[0-9A-Za-z-]{1,64}")
_NAME = re.compile(r"[0-9a-z]([0-9a-z.-]{0,251}[0-9a-z])?")
"""A DNS subdomain, as names in Kubernetes are: the name becomes a part of URLs."""

_LONGEST_PART = 64
"""Characters of a wrong name that are repeated in an error."""

_LONGEST_ERROR = 4096
"""Characters of an error; an Event of Kubernetes shows 1024."""

_UNANSWERED = "gpushare has no answer for this claim, which is a defect of gpushare: report it"

_WORDS: Mapping[str, health_api.HealthStatus.ValueType] = {
    "Healthy": health_api.HEALTHY,
    "Unhealthy": health_api.UNHEALTHY,
    "Unknown": health_api.UNKNOWN,
}

Context = grpc.aio.ServicerContext[object, object]
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")


class DraService:
    """Answers the kubelet for all claims of a node."""

    def __init__(self, claims: ClaimService, calls: Calls, health_seconds: float = HEALTH_SECONDS) -> None:
        """Have `claims` prepare claims, count calls in `calls`, and send the health again after `health_seconds`."""
        self._claims = claims
        self._calls = calls
        self._health_seconds = health_seconds
        self._ended = Published(False)  # noqa: FBT003 - nothing has ended yet

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer the calls to `server`, which has not been started."""
        self._ended = Published(False)  # noqa: FBT003 - as at first
        for version in _VERSIONS:
            server.add_registered_method_handlers(
                version,
                {
                    "NodePrepareResources": _handler(
                        api.NodePrepareResourcesRequest, api.NodePrepareResourcesResponse, self.prepare
                    ),
                    "NodeUnprepareResources": _handler(
                        api.NodeUnprepareResourcesRequest, api.NodeUnprepareResourcesResponse, self.unprepare
                    ),
                },
            )
        watch: grpc.RpcMethodHandler[bytes, health_api.NodeWatchResourcesResponse] = (
            grpc.unary_stream_rpc_method_handler(
                self.watch, response_serializer=health_api.NodeWatchResourcesResponse.SerializeToString
            )
        )
        server.add_registered_method_handlers(_HEALTH, {"NodeWatchResources": watch})

    def end_streams(self) -> None:
        """End all reports of health; calls for claims go on."""
        self._ended.publish(True)  # noqa: FBT003 - they have ended

    async def prepare(
        self, request: api.NodePrepareResourcesRequest, _context: Context
    ) -> api.NodePrepareResourcesResponse:
        """Prepare the claims of a pod; each claim has devices or an error in the answer."""
        with self._counted("NodePrepareResources"):
            answers = await _answered(self._claims.prepare, request.claims)
            return api.NodePrepareResourcesResponse(
                claims={claim.uid: _prepared(answers.get(claim.uid, _UNANSWERED)) for claim in request.claims}
            )

    async def unprepare(
        self, request: api.NodeUnprepareResourcesRequest, _context: Context
    ) -> api.NodeUnprepareResourcesResponse:
        """Give claims back; each claim has an error, or none, in the answer."""
        with self._counted("NodeUnprepareResources"):
            errors = await _answered(self._claims.unprepare, request.claims)
            return api.NodeUnprepareResourcesResponse(
                claims={
                    claim.uid: api.NodeUnprepareResourceResponse(error=_shown(errors.get(claim.uid, "")))
                    for claim in request.claims
                }
            )

    async def watch(self, _request: bytes, _context: Context) -> AsyncIterator[health_api.NodeWatchResourcesResponse]:
        """Report the health of all devices now, after every change and at intervals, until the kubelet hangs up."""
        ended = self._ended
        async for _ in changes(self._claims.health, ended, every=self._health_seconds):
            if ended.value:
                return
            yield health_api.NodeWatchResourcesResponse(devices=map(_health, self._claims.health.value))

    @contextlib.contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        """Count a call with its duration, also one that the kubelet gives up or that ends by a defect."""
        began = time.perf_counter()
        code = grpc.StatusCode.UNKNOWN
        try:
            yield
            code = grpc.StatusCode.OK
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        finally:
            self._calls.count(name, code.name, time.perf_counter() - began)


def _handler(
    asked: type[Q], answered: type[A], answer: Callable[[Q, Context], Awaitable[A]]
) -> "grpc.RpcMethodHandler[Q, A]":
    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString
    )


async def _answered(
    ask: Callable[[Sequence[ClaimId]], Awaitable[Mapping[str, T]]], claims: Iterable[api.Claim]
) -> Mapping[str, T | str]:
    """Return the answers of `ask` by UID.

    A claim that cannot be one of Kubernetes has an error and is not asked for, and neither are too many claims.
    """
    by_uid = {claim.uid: ClaimId(claim.namespace, claim.name, claim.uid) for claim in claims}
    if len(by_uid) > MOST_CLAIMS:
        return dict.fromkeys(
            by_uid, f"{len(by_uid)} claims in one call found, at most {MOST_CLAIMS} expected: a call has those of a pod"
        )
    answers: dict[str, T | str] = {uid: error for uid, id_ in by_uid.items() if (error := _why_no_claim(id_))}
    ids = [id_ for uid, id_ in by_uid.items() if uid not in answers]
    try:
        answers |= await ask(ids) if ids else {}
    except GpushareError as error:
        answers |= dict.fromkeys((id_.uid for id_ in ids), str(error))
    return answers


def _why_no_claim(id_: ClaimId) -> str:
    """Return why a claim cannot be one of Kubernetes, or nothing: its UID becomes a part of the names of files."""
    parts = (("namespace", id_.namespace, _NAME), ("name", id_.name, _NAME), ("UID", id_.uid, _UID))
    wrong = [f"{what} {text[:_LONGEST_PART]!r}" for what, text, form in parts if not form.fullmatch(text)]
    return f"a claim of Kubernetes cannot have the {' and the '.join(wrong)}: is the caller a kubelet?" if wrong else ""


def _prepared(answer: tuple[PreparedDevice, ...] | str) -> api.NodePrepareResourceResponse:
    if isinstance(answer, str):
        return api.NodePrepareResourceResponse(error=_shown(answer) or _UNANSWERED)
    return api.NodePrepareResourceResponse(devices=map(_device, answer))


def _device(prepared: PreparedDevice) -> api.Device:
    return api.Device(
        request_names=[prepared.request],
        pool_name=prepared.pool,
        device_name=prepared.device,
        cdi_device_ids=prepared.cdi_devices,
        share_id=prepared.share_id,
    )


def _shown(error: str) -> str:
    return visible(error)[:_LONGEST_ERROR]


def _health(device: DeviceHealth) -> health_api.DeviceHealth:
    return health_api.DeviceHealth(
        device=health_api.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=_WORDS[device.health],
        message=visible(device.message),
    )
