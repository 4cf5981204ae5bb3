"""How kube-scheduler is answered over HTTP: the server and its paths, and what it takes of requests."""
