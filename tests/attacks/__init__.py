"""What each peer can send to gpushare, at its worst: one module a kind of peer, as README.md here lists them."""
