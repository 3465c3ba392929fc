import re
import shlex
from pathlib import Path

import nbformat
from cases import for_each

from bert_tf.cli import COMMANDS, read_options

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "saved_models/README.md"]
_NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
_FENCE = re.compile(r"(?:<!-- not run: (.+?) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
_TARGETS = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
_PYTHON = ("python", "multi-label", "sentence-vectors", "several-heads")
# The test that runs all Python of the page, one block after the other or each by itself.
RUN_BY = {
    "docs/adding-a-task.md": "tests/runs/test_labelled_data.py",
    "docs/server.md": "tests/server/test_clients.py",
    "docs/serving.md": "tests/server/test_clients.py",
    "docs/features.md": "tests/commands/test_layer_features.py",
    **{f"docs/{page}.md": "tests/runs/test_python_page.py" for page in _PYTHON},
    "README.md": "tests/docs/test_tutorials.py",
    "docs/how-do-i.md": "tests/docs/test_tutorials.py",
    "docs/languages.md": "tests/docs/test_tutorials.py",
    "docs/other-tools.md": "tests/docs/test_other_tools.py",
    "docs/coming-from.md": "tests/migration/test_pages.py",
}


def commands(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = [code for _, language, code in _FENCE.findall(text) if language != "python"]
    indented = re.findall(r"^ {4}(.*)$", _FENCE.sub("", text), re.MULTILINE)
    lines = [x.strip().removeprefix("$ ") for x in [*"\n".join(fenced).splitlines(), *indented]]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("bert-tf ")]


def test_commands_are_found():
    found = commands(ROOT / "README.md")
    assert ["serve", "saved_models"] in found
    assert any(arguments[0] == "finetune" and "--validation" in arguments for arguments in found)
    assert len([each for page in PAGES for each in commands(page)]) > 60


@for_each("name", *_NAMES)
def test_commands_are_understood(name):
    for arguments in commands(ROOT / name):
        assert arguments[0] in COMMANDS, arguments
        if "..." not in arguments:
            read_options(arguments[0], [each for each in arguments if each not in ("&", "|")])


@for_each("name", *_NAMES)
def test_python_is_run_or_marked(name):
    """A block that no test runs says why in a comment above it; old code is marked `py`."""
    blocks = _FENCE.findall((ROOT / name).read_text(encoding="utf-8"))
    for reason, language, code in blocks:
        if language == "python":
            compile(code, name, "exec")
            assert reason or name in RUN_BY, code
    if name in RUN_BY:
        test = (ROOT / RUN_BY[name]).read_text(encoding="utf-8")
        assert Path(name).name in test


LINKED = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "recipes/README.md")),
    ROOT / "tests/golden/README.md",
    *sorted((ROOT / "docs/notebooks").glob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", re.sub(r"\]\([^)]*\)", "]", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


@for_each("name", *[str(path.relative_to(ROOT)) for path in LINKED])
def test_links_lead_somewhere_in_a_checkout(name):
    page = ROOT / name
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"\w+:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


# What a wheel lacks: folders, files and targets of `make`; but `--config` finds recipes.
_OF_A_CHECKOUT = re.compile(
    r"(?<![\w/.-])(?!recipes/[\w-]+\.yaml)((recipes|benchmarks|tests|docs|notebooks|pipelines)/[\w.*/-]*\w"
    r"|requirements[\w-]*\.(txt|lock)|pyproject\.toml|Makefile|Dockerfile|docker build"
    r"|make (?=[a-z-]+[`\n ])(" + "|".join(_TARGETS) + r"))(?![\w-])"
)


@for_each("name", *_NAMES)
def test_what_only_a_checkout_has_is_said_to_be_there(name):
    """With the wheel, in an empty folder, everything else on a page works as it stands."""
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", (ROOT / name).read_text("utf-8"), flags=re.DOTALL)
    if found := _OF_A_CHECKOUT.search(text):
        until = text.find("\n\n", found.end())
        assert re.search("checkout|repository", text[: until if until >= 0 else None]), found[0]


@for_each("name", *sorted(p.stem for p in (ROOT / "notebooks").glob("*.ipynb")))
def test_the_page_of_a_notebook_is_of_its_code(name):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    page = (ROOT / "docs" / "notebooks" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == len(cells)
    for block, cell in zip(blocks, cells, strict=True):
        # A long text is cut, after its first lines.
        first, cut, rest = block.partition("... ")
        code = re.sub(r"[ \t]+$", "", cell, flags=re.MULTILINE)
        assert code.startswith(first) and code.endswith(rest.partition("lines\n")[2] if cut else "")
        assert cut or code == block


def test_pictures_are_small():
    for path in (ROOT / "docs").rglob("*.svg"):
        assert path.stat().st_size <= 60 * 1024, f"{path.name} is too large for a page"
