"""MIG instances, made and destroyed: `gpushare mig` does it, `gpushare run` says which; files are between them."""
