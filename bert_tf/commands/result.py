"""What calls and commands return: values to use, lines to print, HTML for notebooks."""

import base64
import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_tf.commands.progress import shown_score

if TYPE_CHECKING:
    from bert_tf.tasks.reports.tables import Report

MOST_ROWS = 20  # of a table that is shown
_LONGEST_NAME = 30  # in a cell; longer ones are sentences


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(kw_only=True, repr=False, eq=False)
class Result:
    """The outcome of a call.

    Attributes:
        notices: what the run reported on its way, a line each.
    """

    notices: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """What was made and where, a line each."""
        return []

    def tables(self) -> Iterable[Table]:
        """Tables that a notebook shows."""
        return []

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        """Names and contents of PNG files that a notebook shows."""
        return iter(())

    def __repr__(self) -> str:
        return "\n".join([type(self).__name__, *(f"  {line}" for line in self.lines())])

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """For notebooks: tables, pictures and lines."""
        parts = [_table(table) for table in self.tables()]
        for name, content in self.pictures():
            encoded = base64.b64encode(content).decode()
            source = f'alt="{name} plot" src="data:image/png;base64,{encoded}"'
            parts.append(f'<img style="width: 480px; max-width: 100%" {source}>')
        parts += [f"<div>{html.escape(line)}</div>" for line in self.lines()]
        return "\n".join(parts)


def score_table(title: str, scores: dict[str, float | None]) -> Table:
    rows = [[name, shown_score(value)] for name, value in scores.items()]
    return Table(title, ["score", "value"], rows)


def report_pictures(report: "Report") -> Iterator[tuple[str, bytes]]:
    from bert_tf.tasks.reports.pictures import png
    from bert_tf.tasks.reports.tables import Picture

    return ((part.name, png(part.draw())) for part in report if isinstance(part, Picture))


def _table(table: Table) -> str:
    def row(tag: str, cells: Sequence[Any]) -> str:
        return "<tr>" + "".join(cell(tag, value) for value in cells) + "</tr>"

    def cell(tag: str, value: Any) -> str:
        text = html.escape(str(value))
        # Jupyter aligns all cells to the right, which suits numbers and names.
        style = ' style="text-align: left"' if tag == "td" and len(text) > _LONGEST_NAME else ""
        return f"<{tag}{style}>{text}</{tag}>"

    shown = "".join(row("td", cells) for cells in table.rows[:MOST_ROWS])
    left_out = len(table.rows) - MOST_ROWS
    more = f"<div>and {left_out:,} more</div>" if left_out > 0 else ""
    return (
        f"<table><caption>{html.escape(table.title)}</caption>"
        f"<thead>{row('th', table.columns)}</thead><tbody>{shown}</tbody></table>{more}"
    )
