import shutil
import socket
import time

import numpy as np
import pytest
from cases import refused
from preloaded import start_code
from shard_files import arrays, file_of, flip, unmasked

from bert_tf.errors import InputError
from bert_tf.pipelines.shards.folder import open_shards, shard_errors

pytestmark = pytest.mark.usefixtures("small_blocks")

# As docs/reading-shards.md has it.
_SERVER = """
import sys, time
import tensorflow as tf

service = tf.data.experimental.service
dispatcher = service.DispatchServer()
address = dispatcher.target.removeprefix("grpc://")
workers = [
    service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    for _ in range(int(sys.argv[1]))
]
print(dispatcher.target, flush=True)
time.sleep(1e6)
"""


@pytest.fixture(scope="module")
def service():
    """Starts services, each a process; returns the address of one with so many workers."""
    processes = []

    def start(workers):
        process = start_code(_SERVER, [workers])
        processes.append(process)
        return process.first_line()

    yield start
    for process in processes:
        process.kill()


@pytest.fixture(scope="module")
def one_worker(service):
    return service(1)


@pytest.mark.slow
def test_one_worker_keeps_the_order(dynamic, batches, one_worker):
    steps = 2 * open_shards(dynamic).instances // 7 + 3
    whole = arrays(batches(dynamic, 7, seed=1), steps)
    for step in (0, steps // 2):
        served = batches(dynamic, 7, seed=1, start_step=step, data_service=one_worker)
        assert served.element_spec == batches(dynamic, 7).element_spec
        np.testing.assert_equal(arrays(served, steps - step), whole[step:])
    held_out = {"split": "train", "shuffle": False, "repeat": False}
    np.testing.assert_equal(
        arrays(batches(dynamic, 7, data_service=one_worker, **held_out)),
        arrays(batches(dynamic, 7, **held_out)),
    )


@pytest.mark.slow
def test_several_workers_share_the_windows(dynamic, batches, service):
    address = service(2)

    def texts(**named):
        return unmasked(arrays(batches(dynamic, 7, repeat=False, **named)))

    assert sorted(texts(data_service=address)) == sorted(texts())


@pytest.mark.slow
def test_a_corrupt_record_met_by_a_worker_is_named(dynamic, batches, one_worker, tmp_path):
    shutil.copytree(dynamic, tmp_path, dirs_exist_ok=True)
    file = file_of(tmp_path, 0)
    flip(file, 20)  # of the first record's data
    with (
        pytest.raises(InputError, match=rf"{file.name}: record 1 is"),
        shard_errors(open_shards(tmp_path)),
    ):
        arrays(batches(tmp_path, 7, repeat=False, data_service=one_worker))


def test_addresses_of_another_form_are_refused(dynamic, batches):
    for address in ("localhost:5000", "grpc://localhost", "http://localhost:1"):
        with pytest.raises(InputError, match=f"{address}: not the address .* grpc://host:port"):
            batches(dynamic, 7, data_service=address)


def test_a_service_that_does_not_answer_is_named(dynamic, batches):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    start = time.monotonic()
    for address in (f"grpc://localhost:{port}", "grpc://no.such.host.invalid:5000"):
        refused(f"{address}: no .* answers", batches, dynamic, 7, data_service=address)
    assert time.monotonic() - start < 60
