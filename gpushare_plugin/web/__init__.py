"""`gpushare web`: pages that show people every GPU of a cluster, who holds it, and what waits."""
