"""An API server in this process: Nodes and ConfigMaps, watches, server-side apply, and RBAC, over real HTTP."""

from gpushare_plugin.testing.cluster.objects import Store
from gpushare_plugin.testing.cluster.rbac import Permission, granted
from gpushare_plugin.testing.cluster.server import ApiServer, Asked

__all__ = ["ApiServer", "Asked", "Permission", "Store", "granted"]
