"""Pure: the policy `packing`, which places pods so that the least room for pods to come is lost."""
