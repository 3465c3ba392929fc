"""What a search shows: a table, a picture, and the columns of TensorBoard's HParams tab."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from bert_tf.atomic import write_text, write_tsv
from bert_tf.tasks.trials import Trial, best_by, ranked
from bert_tf.training.hyper_parameters import write_columns


def table(trials: Sequence[Trial]) -> list[list[str]]:
    """A row of column names, and one for each setting, the best first.

    After the setting come mean, deviation and each run of the score that chooses, then the means of
    the other scores. Settings without a score come last.
    """
    score = best_by(trials)
    others = dict.fromkeys(
        name for trial in trials for name in trial.restarts.summary() if name != score
    )
    header = ["batch size", "learning rate", "epochs", score, "deviation", "runs", *others]
    rows = [header]
    best = ranked(trials)
    for trial in [*best, *(trial for trial in trials if trial not in best)]:
        setting, summary = trial.setting, trial.restarts.summary()
        runs = trial.restarts.runs.values()
        scores = [_shown(scores.get(score)) for scores in runs]
        rows.append(
            [
                str(setting.batch_size),
                f"{setting.learning_rate:g}",
                str(setting.epochs),
                _shown(trial.score),
                f"{summary[score]['deviation']:.2g}"
                if len(scores) > 1 and score in summary
                else "-",
                " ".join(scores),
                *(_shown(summary[name]["mean"] if name in summary else None) for name in others),
            ]
        )
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown, its columns aligned for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_report(
    trials: Sequence[Trial], output: Path, values: Mapping[str, Sequence[float]]
) -> None:
    """Writes search.tsv, search.md, search.svg, and the columns of TensorBoard's HParams tab.

    Args:
        trials: trials so far.
        output: folder of the search.
        values: see `write_columns`.
    """
    rows = table(trials)
    write_tsv(output / "search.tsv", rows)
    write_text(output / "search.md", markdown(rows))
    write_text(output / "search.svg", picture(trials))
    write_columns(output / "logs", values, f"best_{best_by(trials)}")


def _shown(score: float | None) -> str:
    return "-" if score is None else f"{score:.4g}"


_SIZE = (760, 420)
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 40, 200, 50  # margins
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
_DASHES = ("", "6 4", "2 3", "8 3 2 3")


def picture(trials: Sequence[Trial]) -> str:
    """Scores over the learning rate as SVG.

    Each batch size has a colour and each number of epochs a dash. Filled points are means, hollow
    ones single runs.
    """
    scored = ranked(trials)
    name = best_by(trials)
    points = [
        (trial.setting.learning_rate, value)
        for trial in scored
        for value in trial.restarts.summary()[name]["scores"].values()
    ]
    rates = _Axis([math.log10(rate) for rate, _ in points], _LEFT, _SIZE[0] - _RIGHT)
    scores = _Axis([value for _, value in points], _SIZE[1] - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE[0]} {_SIZE[1]}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(name)} on the validation examples</text>',
        f'<text x="{rates.middle:.1f}" y="{_SIZE[1] - 10}" text-anchor="middle">learning rate'
        "</text>",
    ]
    for value in scores.ticks():
        y = scores(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_SIZE[0] - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    distinct = sorted({rate for rate, _ in points})
    for rate in distinct[:: 1 + len(distinct) // 8]:
        parts.append(
            f'<text x="{rates(math.log10(rate)):.1f}" y="{_SIZE[1] - _BOTTOM + 18}" '
            f'text-anchor="middle">{rate:g}</text>'
        )
    series = sorted({(t.setting.batch_size, t.setting.epochs) for t in scored})
    sizes, epochs = (
        (sorted(set(values)) for values in zip(*series, strict=True)) if series else ([], [])
    )
    for line, (size, count) in enumerate(series):
        colour = _COLOURS[sizes.index(size) % len(_COLOURS)]
        pattern = _DASHES[epochs.index(count) % len(_DASHES)]
        dash = f' stroke-dasharray="{pattern}"' if pattern else ""
        style = f'fill="none" stroke="{colour}" stroke-width="1.5"{dash}'
        own = sorted(
            (t for t in scored if (t.setting.batch_size, t.setting.epochs) == (size, count)),
            key=lambda trial: trial.setting,
        )
        places = []
        for trial in own:
            x, y = rates(math.log10(trial.setting.learning_rate)), scores(trial.score or 0.0)
            places.append(f"{x:.1f},{y:.1f}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            for value in trial.restarts.summary()[name]["scores"].values():
                parts.append(
                    f'<circle cx="{x:.1f}" cy="{scores(value):.1f}" r="2.5" fill="none" '
                    f'stroke="{colour}"/>'
                )
        parts.append(f'<polyline points="{" ".join(places)}" {style}/>')
        x, y = _SIZE[0] - _RIGHT + 15, _TOP + 10 + 20 * line
        parts.append(f'<path d="M{x} {y}h30" {style}/>')
        parts.append(f'<text x="{x + 38}" y="{y + 4}">batch {size}, epochs {count}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """Places values between two pixels, with a margin of a tenth of their range."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        margin = 0.1 * (high - low) or 0.05 * abs(high) or 0.5
        self.low, self.high = low - margin, high + margin
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def ticks(self) -> list[float]:
        """Some five round values."""
        exponent = math.floor(math.log10((self.high - self.low) / 4))
        steps = (factor * 10.0**exponent for factor in (1, 2, 5, 10))
        step = next(step for step in steps if (self.high - self.low) / step <= 7)
        first = math.ceil(self.low / step)
        return [
            round(number * step, 10) for number in range(first, math.floor(self.high / step) + 1)
        ]
