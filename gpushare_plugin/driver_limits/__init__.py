"""`gpushare driver-limits`: sets driver limits for containers, as `gpushare run` wants; and the files exchanged."""
