import os
import signal
import subprocess
import sys

import pytest

from bert_tf.training.preemption import Preempted, StopSignals


def send(number):
    os.kill(os.getpid(), number)


def test_the_exit_code_says_try_again():
    assert Preempted.exit_code == 75 == os.EX_TEMPFAIL


def test_a_signal_is_noted_and_the_handlers_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopSignals() as signals:
        assert signals.received is None
        send(signal.SIGTERM)
        assert signals.received is signal.SIGTERM
        with pytest.raises(Preempted, match="step 7"):
            signals.stop(7)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_interrupt_comes_at_once():
    with StopSignals() as signals:
        send(signal.SIGINT)
        assert signals.received is signal.SIGINT
        with pytest.raises(KeyboardInterrupt, match="step 7"):
            signals.stop(7)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_an_ignored_interrupt_stays_ignored():
    # As that of a job that a shell has put in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            send(signal.SIGINT)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_command_can_name_it_without_tensorflow():
    script = "import sys, bert_tf.training.preemption; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"
