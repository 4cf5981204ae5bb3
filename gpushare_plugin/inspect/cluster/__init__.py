"""The GPUs of a whole cluster and the pods that have them, for `gpushare inspect` and `gpushare explain`."""
