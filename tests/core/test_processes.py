"""Local processes end with the work that they were started for."""

import multiprocessing
import time

import pytest

from gemm_model.core.processes import local_processes


def test_an_interruption_ends_processes_at_work():
    with pytest.raises(KeyboardInterrupt):
        _interrupted_at_work()
    assert not [each for each in multiprocessing.active_children() if "Spawn" in each.name]


def _interrupted_at_work():
    with local_processes(1) as executor:
        work = executor.submit(time.sleep, 3600.0)
        while not work.running():
            time.sleep(0.01)
        raise KeyboardInterrupt


def test_work_that_ends_leaves_no_process():
    with local_processes(1) as executor:
        assert list(executor.map(abs, [-1, 2])) == [1, 2]
    assert not [each for each in multiprocessing.active_children() if "Spawn" in each.name]
