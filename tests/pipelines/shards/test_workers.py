"""Units made by several processes: the same bytes as by one, whatever dies in between."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import for_each, refused, slow
from command_line import finished
from preloaded import run_code
from shard_files import TEXT_OPTIONS as OPTIONS
from shard_files import contents, flip

from bert_tf import make_shards
from bert_tf.cli import main
from bert_tf.errors import InputError
from bert_tf.files.storage import Folder, open_folder
from bert_tf.pipelines.shards import workers
from bert_tf.pipelines.shards.journal import Journal
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.run import UnitShare, write_shards
from bert_tf.pipelines.shards.workers import BeamRunner, ExecutorRunner, dask_workers, process_pool

pytestmark = pytest.mark.usefixtures("small_units")


@pytest.fixture(scope="module")
def whole(whole_text):
    return contents(whole_text)


def test_an_executor_makes_what_one_process_makes(tmp_path, text, tokenizer, whole):
    seen = []
    runner = ExecutorRunner(lambda: ThreadPoolExecutor(2))
    write_shards(text, tmp_path / "out", tokenizer, OPTIONS, runner=runner, progress=seen.append)
    assert contents(tmp_path / "out") == whole
    assert seen == sorted(seen)
    assert seen[-1].bytes_read == seen[-1].total_bytes
    manifest = json.loads(whole["manifest.json"])
    assert seen[-1].instances == sum(
        shard["instances"] for shards in manifest["shards"].values() for shard in shards
    )


def pools(workers, replacement):
    """Opens pools of processes, and a list of them; the third task of all is the replacement."""
    opened, calls = [], itertools.count(1)

    def open_pool():
        pool = process_pool(workers)()
        submit = pool.submit
        pool.submit = lambda *task: submit(*(replacement if next(calls) == 3 else task))
        opened.append(pool)
        return pool

    return open_pool, opened


@pytest.mark.slow
def test_a_killed_process_is_replaced(tmp_path, text, tokenizer, whole):
    open_pool, opened = pools(2, (signal.raise_signal, signal.SIGKILL))
    out = tmp_path / "out"
    write_shards(text, out, tokenizer, OPTIONS, runner=ExecutorRunner(open_pool))
    assert contents(out) == whole
    assert len(opened) == 2


def test_processes_may_die_as_long_as_units_are_made(monkeypatch):
    runner = ExecutorRunner(lambda: contextlib.nullcontext(), retries=2)
    makes = [True] * 5 + [False] * 2 + [True] + [False] * 3
    calls = iter(makes)

    def run(self, executor, job, waiting, failures, report):
        if next(calls):
            waiting.popitem()
        raise BrokenExecutor

    monkeypatch.setattr(ExecutorRunner, "_run", run)
    units = [SimpleNamespace(number=number) for number in range(7)]
    refused("worker processes die again and again", runner, None, units, None)
    assert next(calls, None) is None  # the third in a row that made nothing


@pytest.mark.slow
def test_four_processes_one_of_which_has_a_full_disk(tmp_path, text, tokenizer, whole):
    open_pool, _ = pools(4, (Path("/dev/full").write_bytes, b"content"))
    out = tmp_path / "out"
    with pytest.raises(OSError, match="No space left"):
        write_shards(text, out, tokenizer, OPTIONS, runner=ExecutorRunner(open_pool))
    assert not (out / "manifest.json").exists()
    assert any(name.endswith("-last.json") for name in contents(out))
    runner = ExecutorRunner(process_pool(4))
    write_shards(text, out, tokenizer, OPTIONS, runner=runner)
    assert contents(out) == whole


def test_a_unit_that_fails_is_tried_again(tmp_path, text, tokenizer, whole, monkeypatch):
    """Each unit twice, whatever befalls the others."""
    tried, failures, task, work = Counter(), 2, workers.task, workers.work
    monkeypatch.setattr(workers, "task", lambda job, unit: (unit.number, task(job, unit)))

    def failing(numbered):
        tried[numbered[0]] += 1
        if tried[numbered[0]] <= failures:
            raise (ConnectionResetError(104, "reset"), TimeoutError())[tried[numbered[0]] % 2]
        return work(numbered[1])

    monkeypatch.setattr(workers, "work", failing)
    runner = ExecutorRunner(lambda: ThreadPoolExecutor(1))
    write_shards(text, tmp_path / "out", tokenizer, OPTIONS, runner=runner)
    assert contents(tmp_path / "out") == whole
    with pytest.raises(TimeoutError):
        failures = 3
        tried.clear()
        write_shards(text, tmp_path / "no", tokenizer, OPTIONS, runner=runner)


def test_a_worker_of_another_version_is_refused(tmp_path, text, tokenizer, monkeypatch):
    task = workers.task
    monkeypatch.setattr(workers, "task", lambda *given: ("0.0.1", *task(*given)[1:]))
    runner = ExecutorRunner(lambda: ThreadPoolExecutor(1))
    with pytest.raises(InputError, match=r"a worker has bert-tf .*, but the run has 0\.0\.1"):
        write_shards(text, tmp_path / "out", tokenizer, OPTIONS, runner=runner)


@for_each(
    "make_runner",
    lambda: ExecutorRunner(lambda: ThreadPoolExecutor(2)),
    lambda: BeamRunner("--runner=FnApiRunner --direct_running_mode=in_memory"),
    ids=["executor", "beam"],
)
def test_bad_text_of_a_worker_is_named(tmp_path, text, tokenizer, make_runner):
    bad = shutil.copytree(text, tmp_path / "text")
    (bad / "9.txt").write_bytes(b"\xff\n" * 100)
    with pytest.raises(InputError, match=r"9\.txt, line 1: invalid UTF-8"):
        write_shards(bad, tmp_path / "out", tokenizer, OPTIONS, runner=make_runner())


def test_a_file_that_vanishes_hides_no_other(tmp_path, monkeypatch):
    """As a temporary file does while another process enters a group in the journal."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"content")
    scandir = os.scandir

    @contextlib.contextmanager
    def late(path):
        with scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        (tmp_path / "b").unlink()
        yield found

    monkeypatch.setattr(os, "scandir", late)
    assert open_folder(tmp_path).sizes() == {"a": 7, "c": 7}


@pytest.mark.slow
def test_units_in_any_order(tmp_path, text, tokenizer, whole):
    out = tmp_path / "out"
    finish = {"finish": True}
    refused("holds no units", write_shards, text, out, tokenizer, OPTIONS, **finish)
    for number in (3, 1, 3):
        write_shards_of_share(text, out, tokenizer, number)
    with pytest.raises(InputError, match=r"are missing \(2(, \d+)*\): make them with --units"):
        write_shards(text, out, tokenizer, OPTIONS, **finish)
    write_shards_of_share(text, out, tokenizer, 2)
    flip(sorted(out.glob("train-*"))[2], 50)
    refused(r"shards of 1 of \d+ units", write_shards, text, out, tokenizer, OPTIONS, **finish)
    for number in (1, 2, 3):
        write_shards_of_share(text, out, tokenizer, number)
    write_shards(text, out, tokenizer, OPTIONS, **finish)
    assert contents(out) == whole
    refused("is not empty", write_shards_of_share, text, out, tokenizer, 2)


def write_shards_of_share(text, out, tokenizer, number):
    share = UnitShare(number, 3)
    assert write_shards(text, out, tokenizer, OPTIONS, share=share) == []


@for_each("moment", (Folder, "all_names"), slow((Journal, "entries")))
def test_jobs_that_begin_at_the_same_time(tmp_path, text, tokenizer, whole, monkeypatch, moment):
    """The first job runs while the second one looks at the empty folder."""
    out, removed = tmp_path / "out", []
    look, remove = getattr(*moment), Folder.remove

    def late(self):
        found = look(self)
        monkeypatch.setattr(*moment, look)
        write_shards_of_share(text, out, tokenizer, 1)
        return found

    monkeypatch.setattr(Folder, "remove", lambda self, names: removed.extend(names))
    monkeypatch.setattr(*moment, late)
    write_shards_of_share(text, out, tokenizer, 2)
    assert not removed  # such as the plan of documents, which workers of the first job read
    monkeypatch.setattr(Folder, "remove", remove)
    write_shards_of_share(text, out, tokenizer, 3)
    write_shards(text, out, tokenizer, OPTIONS, finish=True)
    assert contents(out) == whole


def test_another_corpus_under_the_same_journal_is_refused(tmp_path, text, tokenizer):
    out, other = tmp_path / "out", shutil.copytree(text, tmp_path / "other")
    write_shards_of_share(text, out, tokenizer, 1)
    before = contents(out)
    refused(r"differs .*other/0\.txt", write_shards_of_share, other, out, tokenizer, 2)
    assert contents(out) == before


def test_options_that_exclude_each_other(tmp_path, text, tokenizer, capsys):
    tokenizer.save(tmp_path / "vocab")
    command = f"shards --corpus {text} --tokenizer {tmp_path}/vocab --output {tmp_path}/out"
    bad_units = {f"--units {x}": f"is {x}: give" for x in ("17/16", "0/16", "3", "a/b", "3/16/2")}
    for options, message in {
        "--workers 2 --dask tcp://a:1": "--workers cannot be combined with --dask",
        "--workers 2 --finish": "--workers cannot be combined with --finish",
        "--units 1/2 --finish": "--finish cannot be combined with --units",
        "--units 1/2 --overwrite": "--overwrite cannot be combined with --units",
        **bad_units,
    }.items():
        assert main([*command.split(), *options.split()]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@for_each(
    "module make_runner cure",
    ("distributed", lambda: dask_workers("tcp://a:1"), r"'distributed>=2026\.1'"),
    ("apache_beam", BeamRunner, r"'apache-beam<3,>=2\.77'"),
)
def test_a_missing_package_is_named(monkeypatch, module, make_runner, cure):
    monkeypatch.setitem(sys.modules, module, None)
    refused(f"pip install {cure}", make_runner)


def test_a_scheduler_that_is_not_there(tmp_path, text, tokenizer, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "_ANSWER_SECONDS", 0.5)
    runner = ExecutorRunner(dask_workers("tcp://localhost:1"))
    refused("no scheduler", write_shards, text, tmp_path / "out", tokenizer, OPTIONS, runner=runner)


def sleep(task):
    time.sleep(300)


@pytest.mark.slow
@for_each("victim", "scheduler", "worker")
def test_dask_whose_scheduler_or_only_worker_is_killed(tmp_path, victim, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "work", sleep)
    monkeypatch.setattr(workers, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(workers, "_WORKER_SECONDS", 1)
    run = [sys.executable, "-m", "distributed.cli.dask_"]
    place = tmp_path / "scheduler.json"
    how = ["--no-dashboard", "--scheduler-file", str(place)]
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, more in {"scheduler": ["--port", "0"], "worker": ["--no-nanny"]}.items():
            command = [*run[:-1], run[-1] + name, *more, *how]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
            processes[name] = stack.enter_context(process)
            stack.callback(process.kill)
            while not place.exists():
                time.sleep(0.1)
        with distributed.Client(scheduler_file=str(place), set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
            address = client.scheduler.address
        threading.Timer(2, processes[victim].kill).start()
        began = time.monotonic()
        unit = SimpleNamespace(number=0, size=1)
        with pytest.raises(InputError, match=rf"{victim}s? ha.* gone.* to resume"):
            ExecutorRunner(dask_workers(address))(SimpleNamespace(threads=1), [unit], print)
        assert time.monotonic() - began < 60


@pytest.mark.slow
def test_dask_with_a_worker_that_is_killed(tmp_path, text, tokenizer, whole):
    distributed = pytest.importorskip("distributed")
    # Workers forked from the server of `preloaded`, which has imported TensorFlow.
    assert run_code("").returncode == 0
    how = {"distributed.worker.multiprocessing-method": "forkserver"}
    with (
        pytest.importorskip("dask").config.set(how),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, worker_dashboard_address=None
        ) as cluster,
    ):
        victim = cluster.workers[0].pid
        killed = []

        def kill(progress):
            if not killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

        runner = ExecutorRunner(dask_workers(cluster.scheduler_address))
        how = {"runner": runner, "progress": kill, "threads": 1}
        write_shards(text, tmp_path / "out", tokenizer, OPTIONS, **how)
    assert contents(tmp_path / "out") == whole
    assert killed


def test_a_dry_run_estimates_and_writes_nothing(tmp_path, text, tokenizer, whole, capsys):
    tokenizer.save(tmp_path / "vocab")
    named = {"tokenizer": tmp_path / "vocab", "output": tmp_path / "out", "verbose": False}
    made_of = {"corpus": str(text), "max_seq_length": [32], "held_out_share": 0.1}
    result = make_shards(**named, **made_of, dry_run=True)
    assert {path.name for path in tmp_path.iterdir()} == {"vocab"}
    made = sum(len(content) for name, content in whole.items() if name.endswith(".tfrecord"))
    assert result.estimate.shard_bytes == pytest.approx(made, rel=0.1)  # it makes all of the text
    assert result.estimate.text_bytes == sum(path.stat().st_size for path in text.iterdir())
    assert result.estimate.seconds > 0
    assert "GB of shards" in str(result)


@pytest.mark.slow
def test_beam_makes_what_one_process_makes(tmp_path, text, tokenizer, whole):
    """In one process, and in several, as the command has it."""
    runner = BeamRunner("--runner=FnApiRunner --direct_running_mode=in_memory")
    write_shards(text, tmp_path / "out", tokenizer, OPTIONS, runner=runner)
    assert contents(tmp_path / "out") == whole
    tokenizer.save(tmp_path / "vocab")
    command = f"shards --corpus {text} --tokenizer {tmp_path}/vocab --output {tmp_path}/shards"
    command = [sys.executable, "-m", "bert_tf.cli", *command.split(), "--runner", "beam"]
    command += ["--max-seq-length", "32", "64"]
    done = finished(*command)
    for length in ("32", "64"):
        assert Manifest.load(tmp_path / "shards" / length).instances() > 0
    assert "cudart" not in done.stderr
