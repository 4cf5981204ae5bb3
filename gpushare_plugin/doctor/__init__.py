"""`gpushare doctor`: looks at a node, judges what it finds, and says what to change; it changes nothing itself."""
