"""Files, file locks and sockets in directories where other programs may have made the files."""
