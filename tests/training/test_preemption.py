import os
import signal

import pytest

from bert_tf.training.preemption import StopSignals


def send(number):
    os.kill(os.getpid(), number)


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
