"""How long tests wait for what must come: a bound that catches hangs, and that no machine is slow enough to meet otherwise."""

import os

PATIENCE = int(os.environ.get("LEVERET_PATIENCE", "180"))
"""Seconds."""

TEST_SECONDS = 5 * PATIENCE
"""How long a test may take as a whole, in seconds: several of its waits in turn may take as long as they may."""
