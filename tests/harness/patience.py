"""The timeout of all waits in tests: it only catches hangs, and even a slow machine stays below it."""

import os

PATIENCE = int(os.environ.get("LEVERET_PATIENCE", "180"))
"""Seconds."""

TEST_SECONDS = 5 * PATIENCE
"""How long a test may take as a whole, in seconds: several of its waits in turn may take as long as they may."""
