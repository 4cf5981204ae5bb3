"""`gpushare mig`: makes and destroys MIG instances as `gpushare run` wants them."""
