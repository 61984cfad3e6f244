"""The parts of a model's state and the stages of ZeRO that share them: their names, colours and words."""

STAGES = range(4)
NAMES = ("data parallel", "ZeRO stage 1", "ZeRO stage 2", "ZeRO stage 3")
PARTS = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state"}  # with their names in a legend
COLORS = {  # blue and green as in the paper; its orange is hard to tell from the amber of rank 1
    "weights": "#0072B2",
    "gradients": "#B35806",
    "optimizer": "#0F5238",
    "activations": "#CC79A7",
}
DEVICE = 80e9  # bytes of memory
SIZES = (1e9, 1.5e9, 3e9, 7.5e9, 13e9, 30e9, 70e9, 128e9, 175e9, 405e9, 1e12)


def decimal_bytes(nbytes: float) -> str:
    """Bytes with three significant digits in powers of 1000, as in the paper and in data sheets: `31.4 GB`."""
    nbytes *= 1 + 1e-12  # 41.25 becomes 41.3, as in the paper, and not the even 41.2
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if float(f"{nbytes / size:.3g}") >= 1:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.3g} B"


def spoken(number: float) -> str:
    """A number of parameters in words.

    >>> [spoken(number) for number in (54560, 7.5e9, 1e12)]
    ['54560', '7.5 billion', '1 trillion']
    """
    for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if number >= size:
            return f"{number / size:.4g} {word}"
    return f"{number:g}"
