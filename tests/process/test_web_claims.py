"""What `gpushare web` says of pods with claims. Costs three seconds."""

import html
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kube.client import NODES
from gpushare_plugin.ledger.node_record import GPUS_ANNOTATION, encode, record
from gpushare_plugin.testing.cluster import ApiServer
from tests.process.daemon import gpushare
from tests.process.pages import pages
from tests.process.test_inspect_claims import CLAIMS, SLICES, claim
from tests.unit.claims.node import NODE, ClaimNode
from tests.unit.kube.pods import PODS, pod
from tests.unit.sharing.settings import memory


async def test_a_pod_that_waits_for_a_claim_is_told_what_explain_tells(tmp_path: Path) -> None:
    """Which GPUs have too little, whose the rest is, and that the DeviceClass is missing; fits shows what is free."""
    node = ClaimNode(sharing=memory(unit="GiB", isolation="mps"))
    wants = {"deviceClassName": "gpushare", "capacity": {"requests": {"memory": "35Gi"}}}
    waits = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}]}
    async with ApiServer() as server:
        told = encode(record(Snapshot(node.inventory, node.plan.resources, by_claim=node.plan.by_claim)))
        server.store.create(NODES, {"metadata": {"name": NODE, "annotations": {GPUS_ANNOTATION: told}}, "status": {}})
        server.store.create(SLICES, {**node.resource_slice, "metadata": {"name": "a"}})
        server.store.create(CLAIMS, claim(node, "share", "10Gi"))
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": wants}]}}
        server.store.create(CLAIMS, {"metadata": {"name": "train", "namespace": "team"}, "spec": spec})
        server.store.create(PODS, {**pod("waits"), "spec": waits})
        kubeconfig = server.kubeconfig(tmp_path / "config")
        explained = await gpushare("explain", "team/waits", "--kubeconfig", kubeconfig)
        assert explained.output.startswith("There is no DeviceClass gpushare\n")
        jar = aiohttp.CookieJar(unsafe=True)
        async with pages(kubeconfig) as address, aiohttp.ClientSession(cookie_jar=jar) as browser:
            async with browser.get(address):
                pass
            root, text = urlsplit(address)._replace(path="", query="").geturl(), ""
            async with browser.get(f"{root}/updates", params={"whole": "1", "since": "-1"}) as updates:
                while "There is no DeviceClass gpushare" not in text:
                    await updates.content.readuntil(b"\n\n")
                    async with browser.get(f"{root}/waiting/team/waits") as answer:
                        text = html.unescape(await answer.text())
            assert explained.output in text
            async with browser.get(f"{root}/fits", params={"request": "30 GiB"}) as answer:
                assert "Free pieces of GPUs that pods get by ResourceClaim only" in await answer.text()
