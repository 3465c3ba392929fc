from bert_tf.training.watcher import Watcher


class Lines(Watcher):
    """Keeps the lines that a run logs, as (step, kind, scalars), and its notices."""

    def __init__(self, at_line=None) -> None:
        self.lines, self.notices, self._at_line = [], [], at_line

    def notice(self, line) -> None:
        self.notices.append(line)

    def logged(self, step, kind, scalars) -> None:
        self.lines.append((step, kind, scalars))
        if self._at_line is not None:
            self._at_line(step, kind)
