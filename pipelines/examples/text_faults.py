"""Faults of single texts and labels: empty, damaged, in another script, spelt in two ways."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

_DAMAGED = re.compile(r"[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MISREAD = re.compile(r"[\u00c2-\u00f4][\u0080-\u00bf\u20ac\u0152-\u0178\u2013-\u203a]")
_LOOKED_AT = 400  # characters of a text, for its script
_MAIN_SHARE = 0.5  # of a text's letters that another script needs


def text_fault(text: str) -> str | None:
    """What is wrong with a text, or None."""
    if not text.strip():
        return "empty"
    if _DAMAGED.search(text):
        return "damaged characters"
    if (found := _MISREAD.search(text)) and _is_misread(text, found.start()):
        return "read in a wrong encoding"
    return None


def _is_misread(text: str, start: int) -> bool:
    """Whether characters are UTF-8 that was read as Windows-1252."""
    some = text[start : start + 4]
    for encoding in ("cp1252", "latin-1"):
        for end in range(2, len(some) + 1):
            try:
                some[:end].encode(encoding).decode("utf-8")
            except UnicodeError:
                continue
            return True
    return False


def script_of(text: str) -> str | None:
    """The script of most letters of a text, such as LATIN; None without letters."""
    letters = [c for c in text[:_LOOKED_AT] if c.isalpha()]
    counts = Counter(unicodedata.name(c, "?").split(" ")[0].split("-")[0] for c in letters)
    if not counts:
        return None
    (script, count), *_ = counts.most_common(1)
    return script if count > _MAIN_SHARE * len(letters) else None


def other_scripts(texts: Sequence[str]) -> tuple[str | None, dict[int, str]]:
    """The script of most texts; and the texts in others, place -> script."""
    scripts = [script_of(text) for text in texts]
    counts = Counter(script for script in scripts if script)
    main = counts.most_common(1)[0][0] if counts else None
    others = {i: s for i, s in enumerate(scripts) if s is not None and s != main}
    return main, others


def spelt_twice(labels: Sequence[str]) -> dict[str, str]:
    """Labels that differ from a more frequent one in case, white space or punctuation alone."""
    counts = Counter(labels)
    alike: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        key = "".join(re.findall(r"\w+", label.lower())).replace("_", "")
        is_number = re.fullmatch(r"\s*[-+]?[\d.,]+\s*", label)
        alike[label if is_number or not key else key].append(label)
    found: dict[str, str] = {}
    for group in alike.values():
        best = max(group, key=lambda label: (counts[label], label))
        found |= {label: best for label in group if label != best}
    return found
