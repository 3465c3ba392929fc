"""Reports of evaluations in files and in TensorBoard."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_tf.files.atomic import write_text, write_tsv
from bert_tf.tasks.reports.pictures import save_png
from bert_tf.tasks.reports.tables import Picture, Report, markdown
from bert_tf.training.logs import EventFolder


def write_report(report: Report, folder: Path) -> None:
    """Writes report.md, a TSV for each table, a PNG for each picture, and TensorBoard's events."""
    lines = ["# Evaluation"]
    with EventFolder(folder).at(0):
        for part in report:
            if isinstance(part, Picture):
                lines.append(f"![{part.name}]({part.name}.png)")
                image = part.draw()
                save_png(folder / f"{part.name}.png", image)
                tf.summary.image(part.name, image[np.newaxis])
            else:
                table = markdown([part.columns, *part.texts()])
                lines += [f"## {part.title}", *filter(None, [part.note]), table]
                write_tsv(folder / f"{part.name}.tsv", [part.columns, *part.texts()])
                tf.summary.text(part.name, table)
    write_text(folder / "report.md", "\n\n".join(lines) + "\n")
