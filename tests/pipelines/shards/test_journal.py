import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cases import for_each, refused, slow
from shard_files import contents, many_options, write_many

from bert_tf.errors import InputError
from bert_tf.files.atomic import temporary_name
from bert_tf.files.storage import Folder, open_folder
from bert_tf.pipelines.corpus import formats
from bert_tf.pipelines.corpus.text_files import UnreadableFile
from bert_tf.pipelines.shards.journal import Journal
from bert_tf.pipelines.shards.manifest import Manifest, verify
from bert_tf.pipelines.shards.units import write_units

pytestmark = pytest.mark.usefixtures("small_units")


class Killed(BaseException):
    pass


def begin(write, many, out, batches=20, **changed):
    left = iter(range(batches))

    def stop(progress):
        if next(left, None) is None:
            raise Killed

    with pytest.raises(Killed):
        write(many, out, many_options(**changed), progress=stop)


@for_each("after", 0, 25, *(slow(n) for n in (3, 8)))
def test_a_run_that_ends_anywhere_is_continued(tmp_path, many, write, whole_many, after):
    out = tmp_path / "out"
    begin(write, many, out, after)
    assert not (out / "manifest.json").exists()
    made = {path: path.stat().st_mtime_ns for path in out.rglob("*.tfrecord")}
    assert not list(out.rglob("*.tmp"))
    seen = []
    write(many, out, many_options(), progress=seen.append)
    finished = Manifest.load(out)
    assert seen[-1].instances == sum(map(finished.instances, finished.shards))
    assert contents(out) == contents(whole_many)
    for path, time in made.items():  # finished shards were not made again
        assert path.stat().st_mtime_ns == time
    assert bool(made) == (after >= 8)


def test_what_a_kill_left_is_made_again(tmp_path, many, write, whole_many):
    out = tmp_path / "out"
    begin(write, many, out)
    entries = [json.loads(path.read_text()) for path in sorted((out / ".journal").glob("*-*.json"))]
    ended = {entry["unit"] for entry in entries if entry["ends_unit"]}
    finished = [entry for entry in entries if entry["unit"] in ended and not entry["ends_unit"]]
    shards = sorted(out.glob("train-*"))
    (out / finished[-1]["shards"][0]["train"][0]["file"]).unlink()  # of a finished unit
    last = shards[-1]
    last.write_bytes(last.read_bytes()[:-1])
    shards[0].write_bytes(bytes(shards[0].stat().st_size))  # as a power failure may leave it
    (out / "train-99999-00000-00-00.tfrecord").write_bytes(b"not in the journal")
    temporary_name(shards[0]).write_bytes(b"half")
    seen = []
    write(many, out, many_options(), progress=seen.append)
    assert seen == sorted(seen) and seen[-1].bytes_read == seen[-1].total_bytes
    made = Manifest.load(out)
    assert seen[-1].instances == sum(map(made.instances, made.shards))
    assert contents(out) == contents(whole_many)


def zeros(path):
    """What another worker left there that was making the same unit."""
    path.write_bytes(bytes(path.stat().st_size))


@for_each("lost lose", (".journal/00001-*.json", Path.unlink), ("train-00001-*.tfrecord", zeros))
def test_a_run_without_its_last_groups_fails(tmp_path, many, number_tokenizer, write, lost, lose):
    def forgetful(job, units, report):
        write_units(job, units, number_tokenizer, job.open_journal().documents, report)
        lose(next(Path(job.folder).glob(lost)))

    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"shards of 1 of \d+ units .* same command again"):
        write(many, out, many_options(), runner=forgetful)
    assert not (out / "manifest.json").exists()


def test_an_error_in_the_last_group_ends_the_run(tmp_path, many, number_tokenizer, write):
    """Groups are finished while the next one is made; the last has no next one."""

    def failing(self, group):
        if group.ends_unit:
            raise PermissionError

    def first_unit(job, units, report):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(PermissionError):
            patch.setattr(Journal, "add", failing)
            write_units(job, units[:1], number_tokenizer, job.open_journal().documents, report)
        raise Killed

    with pytest.raises(Killed):
        write(many, tmp_path / "out", many_options(), runner=first_unit)


def test_a_journal_whose_removal_fails_still_has_its_plan(tmp_path, monkeypatch):
    journal = Journal(open_folder(tmp_path), [128])
    (tmp_path / ".journal").mkdir()
    for name in ("a.json", "plan.json", "z.json"):
        (tmp_path / ".journal" / name).write_text("{}")
    monkeypatch.setattr(Folder, "remove", lambda self, names: removed.append([*names]))
    removed = []
    journal.remove()
    removed = [set(names) for names in removed if names]
    assert removed == [{"a.json", "z.json"}, {"a.json", "plan.json", "z.json"}]


@for_each("begins", False, slow(True))
def test_a_place_that_refuses_the_end_loses_nothing(
    tmp_path, many, write, whole_many, monkeypatch, begins
):
    """As a store does with an InputError, in the run that makes the units or in a later one."""
    out = tmp_path / "out"
    if begins:
        begin(write, many, out)
    made = []

    def refuse(manifest, directory):
        made.extend(path.name for path in out.glob("*.tfrecord"))
        raise InputError("no permission")

    with monkeypatch.context() as patch, pytest.raises(InputError, match="no permission"):
        patch.setattr(Manifest, "save", refuse)
        write(many, out, many_options())
    assert made
    assert sorted(path.name for path in out.glob("*.tfrecord")) == sorted(made)
    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.pipelines.shards.units._OpenGroup", None)  # makes none again
        write(many, out, many_options())
    assert contents(out) == contents(whole_many)


def test_a_run_killed_after_its_last_step_is_finished(tmp_path, many, write, whole_many):
    out = tmp_path / "out"
    shutil.copytree(whole_many, out)
    (out / ".journal").mkdir()
    begin(write, many, tmp_path / "other")
    plan = tmp_path / "other" / ".journal" / "plan.json"
    (out / ".journal" / "plan.json").write_bytes(plan.read_bytes())
    (out / ".journal" / "00000-00000.json").write_text("{}")  # some of it was removed already
    assert write(many, out, many_options()) == Manifest.load(whole_many)
    assert contents(out) == contents(whole_many)


def test_an_unfinished_run_is_continued_with_its_settings_alone(tmp_path, number_corpus, write):
    many = write_many(tmp_path / "many", number_corpus)
    out = tmp_path / "out"
    begin(write, many, out)
    refused(r"out: .*seed \(12345 there, 3 now\)", write, many, out, many_options(seed=3))
    with pytest.raises(InputError, match=r"mask_token_share \(0\.8 there, 0\.5 now\)"):
        write(many, out, many_options(mask_token_share=0.5))
    unfinished = contents(out)
    (many / "0.txt").write_text("1 2 3\n\n4 5 6\n")
    refused(r"the corpus \(.*0\.txt, or a file beside it, is new", write, many, out, many_options())
    assert contents(out) == unfinished
    plan = out / ".journal" / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "format": 3}))
    refused(r"out: .* differs in the version of bert-tf", write, many, out, many_options())


@pytest.mark.slow
def test_a_line_that_stopped_a_run_can_be_skipped(tmp_path, number_corpus, write):
    text, out = tmp_path / "text", tmp_path / "out"
    text.mkdir()
    for index in range(3):
        documents = number_corpus(20, first=10 + index * 20 * 12 * 9).split("\n\n")
        lines = [json.dumps({"text": document}) for document in documents]
        (text / f"{index}.jsonl").write_text("\n".join(lines))
    (text / "2.jsonl").write_text("\n".join(["{}", *lines]))
    made_of = many_options(instances="full_sentences", held_out_share=0)  # read once, in order
    refused(r"2\.jsonl, line 1: .* --skip_bad_lines", write, text, out, made_of)
    made = {path: path.stat().st_mtime_ns for path in out.glob("train-*")}
    assert made
    made_of = replace(made_of, skip_bad_lines=True)
    manifest = write(text, out, made_of)
    assert manifest.irregularities["bad_lines"] == 1
    assert made == {path: path.stat().st_mtime_ns for path in made}
    write(text, tmp_path / "other", made_of)
    assert contents(out) == contents(tmp_path / "other")


def test_a_file_that_changes_or_vanishes_stops_the_run_or_counts(tmp_path, number_corpus, write):
    many = write_many(tmp_path / "many", number_corpus, files=6)

    def vanish(progress):
        (many / "5.txt").unlink(missing_ok=True)

    def change(progress):
        with (many / "5.txt").open("a") as file:
            file.write("\n\n1 2 3\n")

    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"5\.txt: has changed since the run began"):
        write(many, tmp_path / "no", many_options(), progress=change)
    refused(r"5\.txt: cannot be read", write, many, out, many_options(), progress=vanish)
    assert not (out / "manifest.json").exists()
    shutil.copy(many / "4.txt", many / "5.txt")
    assert (many / "5.txt").stat().st_size > 2 * 8000  # several slices: it counts once
    skipping = many_options(skip_unreadable=True)
    manifest = write(many, tmp_path / "skipped", skipping, progress=vanish)
    assert manifest.irregularities["unreadable_files"] == 1
    assert manifest.documents == 150


@for_each("passing", True, slow(False))
def test_a_file_that_can_be_read_again_or_no_more_is_neither_lost_nor_doubled(
    tmp_path, number_corpus, write, monkeypatch, passing
):
    """A unit that was stopped within is made anew, with all files that can be read now."""
    folder = tmp_path / "text"
    folder.mkdir()
    for index in range(8):
        (folder / f"{index}.txt").write_text(number_corpus(3, first=10 + index * 3 * 12 * 9))
    skipping = many_options(
        skip_unreadable=True, held_out_share=0, buffer_bytes=1000, dupe_factor=1, num_shards=1
    )
    read_blocks = formats.read_blocks

    def failing(path, *arguments, **named):
        if path.endswith("1.txt"):
            raise UnreadableFile(f"{path}: cannot be read")
        return read_blocks(path, *arguments, **named)

    def run(name, fails, **named):
        monkeypatch.setattr(formats, "read_blocks", failing if fails else read_blocks)
        return write(folder, tmp_path / name, skipping, **named)

    expected = run("undisturbed", not passing)
    assert expected.irregularities["unreadable_files"] == (not passing)
    unfinished = tmp_path / "out"

    def stop(progress):  # when the second group of the first unit is begun
        if any(unfinished.glob("*train-00000-00001-*")):
            raise Killed

    with pytest.raises(Killed):
        run("out", passing, progress=stop)
    assert [path.name for path in (unfinished / ".journal").glob("*-*")] == ["00000-00000.json"]
    run("out", not passing)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_only_one_process_writes_a_folder(tmp_path, many, write):
    out = tmp_path / "out"

    def write_too(progress):
        refused("another process is writing there", write, many, out, many_options())

    manifest = write(many, out, many_options(), progress=write_too)
    assert verify(out) == manifest


def test_a_run_that_fails_at_once_leaves_what_came_meanwhile(tmp_path, many, write):
    out = tmp_path / "out"

    def stop(progress):
        (out / "notes.txt").write_text("theirs")
        raise Killed

    with pytest.raises(Killed):
        write(many, out, many_options(), progress=stop)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
