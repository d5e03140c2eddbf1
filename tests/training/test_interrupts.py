import os
import signal
import threading

import pytest

from physicsnemo_flarepp.training.reporting import StopRequest

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers_are_left_as_they_were():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_request(number):
    with StopRequest() as stop:
        assert stop.signal_name is None and not stop.agree("cpu")
        send(number)
        assert stop.signal_name and stop.agree("cpu")
    assert stop.signal_name == number.name


def test_a_second_interrupt_does_not_wait():
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        send(signal.SIGINT)
        assert stop.signal_name
        send(signal.SIGINT)
        pytest.fail("the second SIGINT did not raise")


def test_other_signals_repeat_without_harm():
    with StopRequest() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            send(number)
    assert stop.signal_name == "SIGTERM"


def test_own_handlers_come_back_after_an_error():
    seen = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with pytest.raises(RuntimeError, match="step"), StopRequest():
            send(signal.SIGUSR1)
            raise RuntimeError("step")
        assert seen == []
        send(signal.SIGUSR1)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_requests_nest():
    with StopRequest() as outer:
        with StopRequest() as inner:
            send(signal.SIGTERM)
        assert inner.signal_name and outer.signal_name is None
        send(signal.SIGTERM)
        assert outer.signal_name


def test_another_thread_installs_nothing():
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def work():
        with StopRequest() as stop:
            found.append((signal.getsignal(signal.SIGTERM), stop.signal_name, stop.agree("cpu")))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(before, None, False)]
