"""Files, locks on them and sockets in the file system, where others may have made what is there."""
