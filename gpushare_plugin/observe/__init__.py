"""What others observe: reports and tables of a node and of a cluster, metrics and probes; decides nothing."""
