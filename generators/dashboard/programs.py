"""The rows about claims, and about the programs that serve the whole cluster."""

from generators.dashboard.panel import few_lines, lines
from generators.dashboard.promql import cluster, cluster_rate, gpus, node_rate, nodes, part, quantile_99

_GPU = "{{node}} GPU {{index}}"
_BY_NODE = "cluster, node"
_EXTENDER = "gpushare_extender"
_PARTITIONER = "gpushare_partitioner"

CLAIMS = (
    lines(
        "GPUs by claim",
        "The GPUs that each node gives by ResourceClaim. The device plugin offers the others as units.",
        f"count by ({_BY_NODE}) ({gpus('gpushare_gpu_claims_prepared')})",
        "{{node}}",
    ),
    lines(
        "Shares that prepared claims have",
        "Requests of claims that the node has prepared on each GPU, also for administration; a whole GPU counts as "
        "one.",
        gpus("gpushare_gpu_claims_prepared"),
        _GPU,
    ),
    lines(
        "Memory held by claims",
        "The part of each GPU's memory that counts for prepared claims, used or not. On time-sliced GPUs claims take "
        "shares, and memory only if they ask for it.",
        part(gpus("gpushare_gpu_claimed_memory_bytes"), gpus("gpushare_gpu_memory_bytes"), f"{_BY_NODE}, index"),
        _GPU,
        "percentunit",
        most=1,
    ),
    lines(
        "Calls of the kubelet for claims",
        "How often the kubelet has claims prepared (NodePrepareResources) and takes them back. Any code but OK is a "
        "call without an answer. A refused claim is an answer; see Claims refused.",
        node_rate("gpushare_claim_call_duration_seconds_count", f"{_BY_NODE}, method, code"),
        "{{node}} {{method}} {{code}}",
        "ops",
    ),
    lines(
        "Duration of calls for claims (99 %)",
        "Pods start after NodePrepareResources. A claim waits up to 10 s for memory that others still hold, and for "
        "MPS; the kubelet gives up after 45 s.",
        quantile_99(node_rate("gpushare_claim_call_duration_seconds_bucket", f"le, {_BY_NODE}, method")),
        "{{node}} {{method}}",
        "s",
    ),
    lines(
        "Claims refused",
        "Claims that the node did not prepare, by reason; docs/claims.md says what each means and what to do. The "
        "kubelet tries again about once a minute, and each attempt counts.",
        node_rate("gpushare_claim_refusals_total", f"{_BY_NODE}, reason") + " > 0",
        "{{node}} {{reason}}",
        "ops",
    ),
    lines(
        "ResourceSlices are as they should be",
        "0 where the API server does not show kube-scheduler all GPUs that claims can get; gpushare list on the node "
        "says why. Alert: GpuClaimsUnpublished.",
        f"min by ({_BY_NODE}) ({nodes('gpushare_resource_slices_published')})",
        "{{node}}",
        most=1,
        low_is_wrong=True,
    ),
    lines(
        "ResourceSlices written",
        "Writes and deletions by the node: after changes of the config, of GPUs or of faults, and where the policy "
        "spread orders GPUs anew. A node where nothing changes writes nothing.",
        node_rate("gpushare_resource_slices_written_total", _BY_NODE),
        "{{node}}",
        "ops",
    ),
    lines(
        "ResourceSlices mended",
        "ResourceSlices that somebody else had deleted or changed: a kubelet that starts deletes them once; more than "
        "that is a person or a program.",
        node_rate("gpushare_resource_slices_mended_total", _BY_NODE),
        "{{node}}",
        "ops",
    ),
)

EXTENDER = (
    few_lines(
        "Requests",
        "What kube-scheduler asks: filter, prioritize and bind. Refused is an answer with a reason; failed is a "
        "defect.",
        cluster_rate(f"{_EXTENDER}_requests_total", "verb, result"),
        "{{verb}} {{result}}",
        "ops",
    ),
    few_lines(
        "Duration of requests (99 %)",
        "How long 99 of 100 requests take at most; a bind includes the API server.",
        quantile_99(cluster_rate(f"{_EXTENDER}_request_duration_seconds_bucket", "le, verb")),
        "{{verb}}",
        "s",
    ),
    few_lines(
        "Pods refused",
        "By reason: no_room (other pods have the units), unfit (no node has such GPUs), and failures (not_leading, "
        "bind_failed). Alert: GpushareExtenderRefusals.",
        cluster_rate(f"{_EXTENDER}_refusals_total", "reason"),
        "{{reason}}",
        "ops",
    ),
    few_lines(
        "Pods with a promise that are not bound",
        "Pods that have GPUs promised and are on their way to a node. A few that come and go are usual.",
        f"max({cluster(f'{_EXTENDER}_promises')})",
    ),
    few_lines(
        "Age of what is known of the cluster",
        "The time since the API server last confirmed what the extender knows. Alert: GpushareExtenderCacheOld.",
        f"max({cluster(f'{_EXTENDER}_cache_age_seconds')})",
        unit="s",
    ),
    few_lines(
        "Extenders that are ready",
        "One leads and answers, the others stand by. Alert: GpushareExtenderNotReady.",
        f"sum({cluster(f'{_EXTENDER}_ready')})",
    ),
)

PARTITIONER = (
    lines(
        "Slices made",
        "Slices that the partitioner has decided to make, by size or MIG profile.",
        cluster_rate(f"{_PARTITIONER}_slices_made_total", "slice"),
        "{{slice}}",
        "ops",
    ),
    lines(
        "Slices taken back",
        "Slices taken from the pod that they were made for, by size or MIG profile. Events of the pods say why.",
        cluster_rate(f"{_PARTITIONER}_slices_taken_back_total", "slice"),
        "{{slice}}",
        "ops",
    ),
    few_lines(
        "Pods for which none can be made",
        "By reason: never, or no_room for now.",
        cluster_rate(f"{_PARTITIONER}_refusals_total", "reason"),
        "{{reason}}",
        "ops",
    ),
    few_lines(
        "From a pod to its slice (99 %)",
        "How long 99 of 100 pods wait at most until a node offers their slices.",
        quantile_99(cluster_rate(f"{_PARTITIONER}_pod_wait_duration_seconds_bucket", "le")),
        unit="s",
    ),
    few_lines(
        "Pods that wait for slices",
        "Pods that ask for slices and have no node.",
        f"max({cluster(f'{_PARTITIONER}_waiting_pods')})",
    ),
    few_lines(
        "Longest wait of a pod",
        "The time since the creation of the oldest of these pods. Alert: GpushareSliceAwaited.",
        f"max({cluster(f'{_PARTITIONER}_longest_wait_seconds')})",
        unit="s",
    ),
)
