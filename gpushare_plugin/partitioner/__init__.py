"""`gpushare partition`: makes the slices that waiting pods ask for."""
