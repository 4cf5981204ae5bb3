"""What a program that takes part in scheduling needs of the cluster."""
