"""`gpushare simulate`: what a placement policy would do with the pods of a cluster, without a cluster."""
