"""How many steps the warm-up of a learning rate takes."""

WARMUP_SHARE = 0.1  # of fine-tuning's steps
_LONGEST_WARMUP = 10_000  # of pre-training, as in the paper (section A.2)


def warmup_steps(total_steps: int, share: float = WARMUP_SHARE) -> int:
    """Steps of warm-up in fine-tuning (the original's run_classifier.py, --warmup_proportion)."""
    return round(total_steps * share)


def pretraining_warmup_steps(total_steps: int) -> int:
    """Steps of warm-up in pre-training: the paper's, or a tenth of a short run's."""
    return min(_LONGEST_WARMUP, total_steps // 10)
