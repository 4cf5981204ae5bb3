"""The cluster as a partitioner knows it in one term: what the account holds, and what decides where pods can run."""

from collections.abc import Iterable
from datetime import datetime

from gpushare_plugin.adapters.cluster.accounts import account_node, account_pod
from gpushare_plugin.adapters.cluster.collection import Gone
from gpushare_plugin.adapters.cluster.scheduling.judged import scheduling_node, scheduling_pod
from gpushare_plugin.adapters.cluster.scheduling.objects import JudgedNode, JudgedPod
from gpushare_plugin.adapters.cluster.whole_cluster.wanted_slices import NodeIdentity
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.account.cluster import ClusterAccount
from gpushare_plugin.model.account.pod import AccountPod
from gpushare_plugin.model.partition.nodes import PartitionNode
from gpushare_plugin.model.partition.pods import WaitingPod, slices_of, waiting_pod
from gpushare_plugin.model.partition.wanted import WANTED_SLICES, Wanted, WantedError, decode
from gpushare_plugin.model.scheduling.demand import NOTHING, Demand
from gpushare_plugin.model.scheduling.fits import Screening, lack
from gpushare_plugin.model.scheduling.node import SchedulingNode
from gpushare_plugin.model.scheduling.pod import SchedulingPod
