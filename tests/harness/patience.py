"""How long tests wait for what must come: a bound that catches hangs, and that no machine is slow enough to meet otherwise."""

import os

PATIENCE = int(os.environ.get("LEVERET_PATIENCE", "180"))
"""Seconds."""
