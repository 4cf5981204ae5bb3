"""How long lives are, and which."""

import os

STEPS = int(os.environ.get("GPUSHARE_UPGRADE_STEPS", "12"))
"""Steps of each life, the same in each run; set the variable for longer ones, and GPUSHARE_UPGRADE_SEED for others."""

SEED = int(os.environ.get("GPUSHARE_UPGRADE_SEED", "1"))
