"""How weights start: truncated normal, each drawn from a seed of its own."""

import zlib

import keras


def child_seed(seed: int | None, name: str) -> int | None:
    """The seed of the part called `name` of something seeded with `seed`.

    Keras initializers with equal integer seeds draw equal values, so every weight needs its own.
    Deriving it from the name, not from a counter, keeps a weight's value when parts are added.

    Args:
        seed: the whole's seed, or None for an unrepeatable draw.
        name: the part's name, unique within the whole.

    Returns:
        An int in [0, 2^31), or None if `seed` is None.
    """
    if seed is None:
        return None
    return zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF


def truncated_normal(
    stddev: float, seed: int | None, name: str
) -> keras.initializers.TruncatedNormal:
    """The original's `create_initializer` (modeling.py) for the weight called `name`."""
    return keras.initializers.TruncatedNormal(stddev=stddev, seed=child_seed(seed, name))
