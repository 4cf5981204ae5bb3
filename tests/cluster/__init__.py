"""Node and scheduler together: daemons, embedded kubelets, extender, API server and a small scheduler."""
