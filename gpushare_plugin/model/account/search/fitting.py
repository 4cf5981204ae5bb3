"""The place of a pod on one node, or the reason why the pod does not fit on the node."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpushare_plugin.foundation.errors import PlacementError
from gpushare_plugin.model.account.node import ALWAYS_OURS, Shape
from gpushare_plugin.model.account.occupancy import ONE_GPU_KINDS, NodeAccount, ResourceAccount
from gpushare_plugin.model.account.pod import Pod, Share
from gpushare_plugin.model.account.request import ANY_GPU, PodRequest
from gpushare_plugin.model.account.search.verdicts import FITS, Misfit, Placement, Verdict, graded, lacking, shortage
from gpushare_plugin.model.choice.chooser import WHY_SINGLE_GPU, Chooser, Request, refuse_several_slices
from gpushare_plugin.model.choice.policies import DEFAULT_POLICY, POLICIES, Occupancy, Price


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for the whole cluster."""

    policy: str = DEFAULT_POLICY
    """The placement policy if neither the pod nor the node names a policy."""
    ours: frozenset[str] = ALWAYS_OURS
    """The resources that the account decides: Aliyun's resources, and all resources in the record of any node.

    A record describes its own node only. `Node.lacks` tells whether another node has none of a resource.
    """


class Ask(NamedTuple):
    """A question to a node: whether and where a pod fits."""

    request: PodRequest
    """The request of the pod."""
    owner: str | None
    """The UID of the controller of the pod; None if other pods of the controller do not matter."""
    rules: Rules
    """The rules of the cluster."""


class _Choice(NamedTuple):
    """The GPUs chosen for a request."""

    shares: list[Share]
    """The units of every container, by GPU and resource; incomplete if the search is not exact."""
    prices: list[float]
    """The prices of the chosen GPUs, from 0 to 1."""


def fit(account: NodeAccount, ask: Ask) -> Verdict:
    """Return whether a pod fits on a node, with a score for a fit."""
    found = _Search(account, ask, exact=False).run()
    if isinstance(found, Misfit):
        return found
    prices = found.prices
    return graded(sum(prices) / len(prices)) if prices else FITS[0]


def place(account: NodeAccount, ask: Ask) -> Placement | Misfit:
    """Return the place of a pod on a node, or the reason why the pod does not fit."""
    found = _Search(account, ask, exact=True).run()
    return found if isinstance(found, Misfit) else Placement(account.node.name, tuple(found.shares))


def with_nominated(account: NodeAccount, pods: Iterable[Pod], rules: Rules) -> NodeAccount:
    """Return the account of a node with promises to `pods`, which wait until victims on the node have gone.

    A waiting pod gets its units on the GPUs that it would get without the pods now being deleted. A pod that does not
    fit even then gets no promise.
    """
    ending = {pod.uid for pod in account.pods if pod.ending}
    for pod in pods:
        placed = place(account.without(ending), Ask(pod.request, pod.owner, rules))
        if isinstance(placed, Placement):
            account = account.promising(pod, placed.shares)
    return account


class _Search:
    """The search for GPUs on one node for one request.

    Without `exact`, the search finds only whether the pod fits, and the prices: finding the closest whole GPUs takes
    long.
    """

    def __init__(self, account: NodeAccount, ask: Ask, *, exact: bool) -> None:
        self._account = account
        self._request, owner, self._rules = ask
        self._policy = POLICIES[self._request.policy or account.node.policy or self._rules.policy]
        self._node_replicas, self._replicas = account.replicas(owner)
        self._exact = exact

    def run(self) -> _Choice | Misfit:
        """Choose GPUs for one offered resource after another.

        Different resources have different GPUs, except that cores are part of the GPUs of a memory resource.
        """
        if self._request.problem is not None:
            return Misfit(self._request.problem, self._request)
        choice = _Choice([], [])
        for group in self._groups():
            found = group if isinstance(group, Misfit) else self._choose(group)
            if isinstance(found, Misfit):
                return found
            choice.shares.extend(found.shares)
            choice.prices.extend(found.prices)
        return choice

    def _groups(self) -> Iterator[Sequence[ResourceAccount] | Misfit]:
        """Yield the requested and offered resources in groups: the first memory with all cores, every other alone.

        Yields a misfit for a requested resource that the node cannot serve.
        """
        memory: list[ResourceAccount] = []
        cores: list[ResourceAccount] = []
        for name in self._request.amounts:
            account = self._account.resources.get(name)
            if account is None or not account.offer.kind:
                node = self._account.node
                if name in self._rules.ours and node.obscures(name):
                    yield Misfit(f"the record of the node cannot be read: {node.unreadable}", self._request)
                elif name in self._rules.ours and node.lacks(name):
                    yield Misfit(f"the node does not offer {name}", self._request)
            elif account.offer.kind == "memory":
                memory.append(account)
            elif account.offer.kind == "cores":
                cores.append(account)
            else:
                yield (account,)
        beside = [account.offer.resource for account in memory]
        if cores and (problem := without_memory(self._request, cores[0].offer.resource, beside)):
            yield Misfit(problem, self._request)
        if together := (*memory[:1], *cores):
            yield together
        yield from ((account,) for account in memory[1:])

    def _choose(self, group: Sequence[ResourceAccount]) -> _Choice | Misfit:
        offer = group[0].offer
        if offer.kind in ONE_GPU_KINDS:
            return self._together(group)
        chooser = _SliceChooser(self, group[0]) if offer.kind == "slices" else offer.chooser(exact=self._exact)
        if chooser is None:
            problem = f"{offer.resource} is of kind {offer.kind!r}, which this version does not know: update gpushare"
            return Misfit(problem, self._request)
        return self._apart(group[0], chooser)

    def _together(self, group: Sequence[ResourceAccount]) -> _Choice | Misfit:
        """Choose one GPU for all units of all containers, or several GPUs for equal parts of every container."""
        first, count = group[0], self._request.gpu_count
        if count > 1 and (problem := unsplittable(self._request, _shapes(group))):
            return Misfit(problem, self._request)
        eligible: frozenset[str] | None = None
        for beside in group[1:]:
            found = self._roomy(beside, eligible)
            if isinstance(found, Misfit):
                return found
            eligible = frozenset(beside.offer.gpus[number].name for number in found)
        found = self._roomy(first, eligible)
        if isinstance(found, Misfit):
            return found
        size = self._request.amounts[first.offer.resource] // count
        prices = self._cheapest(first, found, size, count)
        gpus = [first.offer.gpus[number].name for _, number in prices]
        return _Choice(self._parts(group, gpus) if self._exact else [], [price[0] for price, _ in prices])

    def _cheapest(
        self, account: ResourceAccount, numbers: Sequence[int], size: int, count: int
    ) -> Sequence[tuple[Price, int]]:
        """Return the prices and numbers of the `count` cheapest GPUs among `numbers`, for `size` units on every GPU."""
        free, node_left = account.free, account.node_free - size * count
        if count == 1 and not self._node_replicas:
            # Only the first of all GPUs with the same free units can win. Fewer prices matter on thousands of nodes.
            numbers = list({free[number]: number for number in reversed(numbers)}.values())
        prices = [(self.price(account, number, free[number] - size, node_left), number) for number in numbers]
        return (min(prices),) if count == 1 else sorted(prices)[:count]

    def _parts(self, group: Sequence[ResourceAccount], gpus: Sequence[str]) -> list[Share]:
        """Return the shares of all containers, with equal parts of a container's units on every GPU of `gpus`."""
        resources = {account.offer.resource for account in group}
        return [
            Share(container.name, resource, gpu, amount // len(gpus))
            for container in self._request.containers
            for resource, amount in container.amounts
            if resource in resources
            for gpu in gpus
        ]

    def _roomy(self, account: ResourceAccount, eligible: Collection[str] | None) -> list[int] | Misfit:
        """Return the numbers of the GPUs with room for an equal part of the request, a misfit if there are too few."""
        resource, count = account.offer.resource, self._request.gpu_count
        size = self._request.amounts[resource] // count
        free = self._free(account, eligible)
        roomy = [number for number, units in enumerate(free) if units >= size]
        if len(roomy) < count:
            return shortage(self._request, account, size, count, free)
        return roomy

    def _apart(self, account: ResourceAccount, chooser: Chooser) -> _Choice | Misfit:
        """Choose container by container, in the order of the kubelet's calls.

        Later containers reuse the units of init containers.
        """
        resource = account.offer.resource
        free = dict(zip((gpu.name for gpu in account.offer.gpus), self._free(account), strict=True))
        reusable: dict[str, int] = {}
        shares: list[Share] = []
        for container in self._request.containers:
            if not (size := container.amount(resource)):
                continue
            taken = _first(reusable, size)
            try:
                chosen = self._ask(chooser, account, Request(resource, size, _occupancies(account, free, taken), taken))
            except PlacementError as error:
                if account.offer.kind == "slices" and size > 1:
                    return Misfit(str(error), self._request)
                left = tuple(units + taken.get(gpu, 0) for gpu, units in free.items())
                return shortage(self._request, account, size, 0, left)
            shares += [Share(container.name, resource, gpu, units) for gpu, units in chosen.items() if units]
            for gpu, units in chosen.items():
                again = taken.get(gpu, 0)
                free[gpu] -= units - again
                reusable[gpu] = reusable.get(gpu, 0) + (units - again if container.kind == "init" else -again)
        touched = {share.gpu for share in shares}
        left_over = sum(free.values())
        prices = [
            self.price(account, number, free[gpu.name], left_over)[0]
            for number, gpu in enumerate(account.offer.gpus)
            if gpu.name in touched
        ]
        return _Choice(shares, prices)

    def _ask(self, chooser: Chooser, account: ResourceAccount, request: Request) -> Mapping[str, int]:
        """Return the units that a chooser gives one container, by GPU.

        Under a policy that separates replicas, GPUs without pods of the same owner are tried first. Raises
        PlacementError if no choice is possible.
        """
        if self._replicas and self._policy.separates_replicas:
            free = {
                gpu: 0 if gpu in self._replicas else each.free - request.taken.get(gpu, 0)
                for gpu, each in request.gpus.items()
            }
            apart = Request(request.resource, request.size, _occupancies(account, free, request.taken), request.taken)
            try:
                return chooser.choose(apart)
            except PlacementError:
                pass
        return chooser.choose(request)

    def _free(self, account: ResourceAccount, eligible: Collection[str] | None = None) -> tuple[int, ...]:
        """Return the free units of every GPU for the pod: 0 if the pod refuses the GPU or the GPU is not `eligible`."""
        wishes = self._request.wishes
        if wishes == ANY_GPU and eligible is None:
            return account.free
        return tuple(
            0 if wishes.refusal(gpu.name, gpu.product) or (eligible is not None and gpu.name not in eligible) else units
            for gpu, units in zip(account.offer.gpus, account.free, strict=True)
        )

    def price(self, account: ResourceAccount, number: int, left: int, node_left: int) -> Price:
        """Return the price of a GPU for a choice leaving `left` free units on the GPU and `node_left` on the node."""
        gpu, node = left / account.largest, node_left / account.units
        if not self._node_replicas:
            return self._policy.price(gpu, node)
        replicas = self._replicas.get(account.offer.gpus[number].name, 0)
        return self._policy.price(gpu, node, replicas, self._node_replicas)


class _SliceChooser:
    """Chooses the GPU for one slice by the policy of pod, node or cluster; a node's daemon takes the fullest GPU."""

    def __init__(self, search: _Search, account: ResourceAccount) -> None:
        self._search = search
        self._account = account

    def choose(self, request: Request) -> Mapping[str, int]:
        """Choose the cheapest GPU, or the GPU of a slice already taken."""
        refuse_several_slices(request.resource, request.size)
        if request.taken:
            return request.taken
        prices = [
            (self._search.price(self._account, number, gpu.free - 1, request.free - 1), number, name)
            for number, (name, gpu) in enumerate(request.gpus.items())
            if gpu.free
        ]
        if not prices:
            raise PlacementError(lacking(request.resource, 1, 0))
        return {min(prices)[2]: 1}


def _occupancies(account: ResourceAccount, free: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, Occupancy]:
    """Return the occupancies of the GPUs for a chooser: the units already taken for a container count as free."""
    return {
        gpu.name: Occupancy(gpu.index, free[gpu.name] + taken.get(gpu.name, 0), gpu.units) for gpu in account.offer.gpus
    }


def _first(reusable: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the units of init containers that a later container reuses, by GPU, at most `most` units in all."""
    taken: dict[str, int] = {}
    for gpu, units in reusable.items():
        if units and most:
            taken[gpu] = min(units, most)
            most -= taken[gpu]
    return taken


def _shapes(group: Sequence[ResourceAccount]) -> dict[str, Shape]:
    return {account.offer.resource: account.offer.shape for account in group}


def unsplittable(request: PodRequest, shapes: Mapping[str, Shape]) -> str | None:
    """Return why the units of the pod cannot be split evenly over the requested GPUs, None if a split is possible.

    `shapes` are the shapes of the node's offers, for every resource to be split. An offer may forbid a split.
    """
    count = request.gpu_count
    for resource, shape in shapes.items():
        if shape.single_gpu and count > 1:
            return (
                f"the pod asks for {resource} of {count} GPUs, but the node gives units of one only: {WHY_SINGLE_GPU}"
            )
    for container in request.containers:
        for resource, amount in container.amounts:
            if resource in shapes and (rest := amount % count):
                return (
                    f"container {container.name} asks for {amount} units of {resource}, which cannot be split evenly "
                    f"over {count} GPUs: {rest} are left over, {count - rest} more could be split"
                )
    return None


def without_memory(request: PodRequest, cores: str, memory: Collection[str]) -> str | None:
    """Return a problem if a container requests compute without memory, None otherwise.

    Memory decides the GPU of a container: without memory the container would have a limit, but no GPU.
    """
    if not memory:
        return f"the pod requests {cores} but no memory of a GPU, and so has no GPU: request both in each container"
    for container in request.containers:
        if container.amount(cores) and not any(map(container.amount, memory)):
            return (
                f"container {container.name} requests {cores} but no memory of a GPU, and so has no GPU: request "
                "memory in the same container as well, such as aliyun.com/gpu-mem"
            )
    return None
