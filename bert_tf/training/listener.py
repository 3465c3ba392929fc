"""The interface through which a run reports its progress."""


class Listener:
    """Is told how runs go, by their chief workers; override what you want to know."""

    def notice(self, line: str) -> None:
        """A line for the user."""
        print(line)

    def started(self, title: str, number: int, total: int) -> None:
        """Called before each of several runs, counted from 1."""

    def planned(self, steps: int) -> None:
        """Called with the total number of steps of a run, before the first."""

    def on_step(self, step: int) -> None:
        """Called with the step after each execution, on every worker."""

    def report(self, step: int, kind: str, scalars: dict[str, float]) -> None:
        """Called for each line logged; `kind` is "train" or "held_out"."""
