"""`python -m gpushare_plugin`."""

from gpushare_plugin.cli import main

main()
