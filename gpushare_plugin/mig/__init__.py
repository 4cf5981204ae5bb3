"""`gpushare mig`: creates and destroys MIG instances as ordered by `gpushare run`; and the files exchanged with it."""
