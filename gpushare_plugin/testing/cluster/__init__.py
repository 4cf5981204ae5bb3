"""An API server in this process, over real HTTP: any objects, lists in pages, watches, Bindings, Leases, RBAC."""

from gpushare_plugin.testing.cluster.rbac import Permission, granted
from gpushare_plugin.testing.cluster.server import ApiServer, Asked
from gpushare_plugin.testing.cluster.store.objects import Store

__all__ = ["ApiServer", "Asked", "Permission", "Store", "granted"]
