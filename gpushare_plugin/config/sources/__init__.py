"""Where the config comes from: files, named configs, node labels; and when it changed."""
