"""A wrong wall clock that a test can correct."""

from harness.preload import preloaded


class WrongClock:
    """The clock of a process with this environment."""

    def __init__(self, directory, seconds):
        self.file = directory / "wrong_clock"
        self.environment = {"LD_PRELOAD": str(preloaded("wrong_clock")), "WRONG_CLOCK": str(self.file)}
        self.file.write_text(str(seconds))

    def set_right(self, server):
        """Returns once the server has noticed."""
        self.set(0)
        server.child.wait_line("the system clock was set")

    def set(self, seconds):
        """Makes it wrong by this number of seconds."""
        # Renamed into place: an empty file would mean a correct clock.
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self.file)
