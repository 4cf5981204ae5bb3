"""CDI specifications on the host: what they describe, and the specification that gpushare writes."""
