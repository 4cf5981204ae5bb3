"""What plugins of the kubelet are served with: sockets, the directories of the sockets, counts of calls, warnings."""
