"""The programs: the daemon of a node, the supervisors of MPS and MIG, the extender and the partitioner."""
