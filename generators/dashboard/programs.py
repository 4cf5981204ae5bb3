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
        "Prepared requests of claims on each GPU, also for administration. A whole GPU counts as one share.",
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
        "How often the kubelet has claims prepared (NodePrepareResources) and gives claims back. A code other than OK "
        "is a call without an answer. A refused claim is an answer: see Claims refused.",
        node_rate("gpushare_claim_call_duration_seconds_count", f"{_BY_NODE}, method, code"),
        "{{node}} {{method}} {{code}}",
        "ops",
    ),
    lines(
        "Duration of calls for claims (99 %)",
        "Pods start after NodePrepareResources. A claim waits up to 10 s for memory that other claims still hold and "
        "for MPS, and up to 20 s for MPS namespaces. The kubelet gives up after 45 s.",
        quantile_99(node_rate("gpushare_claim_call_duration_seconds_bucket", f"le, {_BY_NODE}, method")),
        "{{node}} {{method}}",
        "s",
    ),
    lines(
        "Claims refused",
        "Claims that the node did not prepare, by reason. docs/claims.md says what each reason means and what to do. "
        "The kubelet tries again about once a minute, and each attempt counts.",
        node_rate("gpushare_claim_refusals_total", f"{_BY_NODE}, reason") + " > 0",
        "{{node}} {{reason}}",
        "ops",
    ),
    lines(
        "ResourceSlices are as they should be",
        "0 where ResourceSlices lack GPUs that claims can get, so that kube-scheduler does not see these GPUs. "
        "gpushare list on the node says why. Alert: GpuClaimsUnpublished.",
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
        "ResourceSlices that the node wrote again because somebody else had deleted or changed them. A kubelet "
        "deletes all of its node once when it starts. A person or a program did the rest.",
        node_rate("gpushare_resource_slices_mended_total", _BY_NODE),
        "{{node}}",
        "ops",
    ),
)

EXTENDER = (
    few_lines(
        "Requests",
        "Requests of kube-scheduler: filter, prioritize and bind. A refused request has an answer with a reason. A "
        "failed request is a defect.",
        cluster_rate(f"{_EXTENDER}_requests_total", "verb, result"),
        "{{verb}} {{result}}",
        "ops",
    ),
    few_lines(
        "Duration of requests (99 %)",
        "How long 99 of 100 requests take at most. A bind includes the time of the API server.",
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
        "Pods that have a promise of GPUs and no node yet. A few that come and go are usual.",
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
        "One ready extender leads and answers. Others stand by. Alert: GpushareExtenderNotReady.",
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
        "Slices taken back from the pod for which they were made, by size or MIG profile. Events of the pods say why.",
        cluster_rate(f"{_PARTITIONER}_slices_taken_back_total", "slice"),
        "{{slice}}",
        "ops",
    ),
    few_lines(
        "Pods for which none can be made",
        "By reason: no node can ever make the slice (never), or no GPU has room now (no_room).",
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
        "The time since the creation of the oldest pod that waits for slices. Alert: GpushareSliceAwaited.",
        f"max({cluster(f'{_PARTITIONER}_longest_wait_seconds')})",
        unit="s",
    ),
)
