"""A bounded store."""

from gpushare_plugin.base.recently_used import RecentlyUsed


def test_the_store_is_bounded_and_forgets_what_was_used_least_recently() -> None:
    """Keys that come and go for years do not fill the memory; to ask for a key, or to put it again, uses it."""
    store = RecentlyUsed[str, int](3)
    for number, key in enumerate("abc"):
        assert store.put(key, number) == number
    store.get("a")
    store.put("b", 5)
    store.put("new", 1)
    assert [store.get(key) for key in ("a", "b", "c", "new")] == [0, 5, None, 1]
    store.forget("a")
    store.forget("nobody")
    assert ("a" in store, "b" in store, len(store)) == (False, True, 2)
