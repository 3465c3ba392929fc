"""The interface through which a run reports its progress."""


class Watcher:
    """Observes runs: override the events of interest.

    The command's watcher is called on every worker, watchers from `Run.watch` on the chief alone.
    """

    def notice(self, line: str) -> None:
        """A line for the user, from the chief worker."""
        print(line)

    def working(self, what: str, completed: int, total: int) -> None:
        """Called during work that is no training step, with how much of it is done."""

    def started(self, title: str, number: int, total: int) -> None:
        """Called before each of several runs, counted from 1."""

    def begin(self, total_steps: int) -> None:
        """Called before the first step in this process, with the number of the run's steps."""

    def before_step(self) -> None:
        """Called before each execution."""

    def after_step(self, step: int) -> None:
        """Called after each execution, once it is logged and before the state is saved."""

    def logged(self, step: int, kind: str, scalars: dict[str, float]) -> None:
        """Called on the chief for each line of scalars; `kind` is "train" or "held_out"."""

    def after_evaluation(self) -> None:
        """Called after each evaluation."""

    def end_phase(self) -> None:
        """Called after each phase."""
