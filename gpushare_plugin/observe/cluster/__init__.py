"""The GPUs of a whole cluster and the pods with units of GPUs, for `gpushare inspect` and `gpushare explain`."""
