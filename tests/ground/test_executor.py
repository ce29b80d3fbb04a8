import multiprocessing
import os
import signal
import time

import pytest

from pretrace.errors import PretraceError
from pretrace.executor import Workers, map_tasks


def square(x):
    return x * x


def touch_and_square(argument):
    folder, x = argument
    with open(os.path.join(folder, f"ran-{x}"), "a") as file:
        file.write("x")
    return x * x


def fail_on_three(x):
    if x == 3:
        raise PretraceError("three is not taken", "task 3", "leave it out")
    return x


def die_on_two(x):
    if x == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return x


def threads(_):
    return os.environ["OMP_NUM_THREADS"]


def tasks(n):
    return {f"t{i}": i for i in range(n)}


def outcome(results):
    return {r.key: r.value if r.ok else "failed" for r in results}


def test_processes_give_what_the_plain_loop_gives():
    plain = outcome(map_tasks(square, tasks(5), workers=0))
    assert plain == {f"t{i}": i * i for i in range(5)}
    assert outcome(map_tasks(square, tasks(5), workers=2)) == plain


def test_a_second_start_runs_only_what_is_missing(tmp_path):
    todo = {f"t{i}": (str(tmp_path), i) for i in range(4)}
    first = {k: todo[k] for k in ("t0", "t1")}
    list(map_tasks(touch_and_square, first, workers=0, keep=tmp_path / "keep"))
    again = list(map_tasks(touch_and_square, todo, workers=0, keep=tmp_path / "keep"))
    assert {r.key for r in again if r.kept} == {"t0", "t1"}
    assert outcome(again) == {"t0": 0, "t1": 1, "t2": 4, "t3": 9}
    assert all((tmp_path / f"ran-{i}").read_text() == "x" for i in range(4))


def test_a_kept_result_that_was_damaged_is_made_again(tmp_path):
    list(map_tasks(square, tasks(3), workers=0, keep=tmp_path))
    (tmp_path / "t1.pkl").write_bytes(b"\x80")
    again = list(map_tasks(square, tasks(3), workers=0, keep=tmp_path))
    assert outcome(again) == {"t0": 0, "t1": 1, "t2": 4}
    assert {r.key for r in again if r.kept} == {"t0", "t2"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_stays_its_own(workers, tmp_path):
    results = list(map_tasks(fail_on_three, tasks(5), workers=workers, keep=tmp_path))
    assert outcome(results) == {"t0": 0, "t1": 1, "t2": 2, "t3": "failed", "t4": 4}
    failed = next(r for r in results if not r.ok)
    assert "three is not taken" in failed.error
    with pytest.raises(PretraceError, match="three is not taken"):
        failed.get()
    assert not (tmp_path / "t3.pkl").exists()


def test_a_process_that_dies_takes_no_other_task_with_it():
    assert outcome(map_tasks(die_on_two, tasks(5), workers=2)) == {"t0": 0, "t1": 1, "t2": "failed", "t3": 3, "t4": 4}


def test_workers_run_with_the_declared_number_of_threads():
    assert outcome(map_tasks(threads, {"t": 0}, workers=1, threads_per_worker=3)) == {"t": "3"}


def test_a_key_that_would_leave_the_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a plain file name"):
        list(map_tasks(square, {"../x": 1}, workers=0, keep=tmp_path))


@pytest.mark.parametrize("workers", [0, 1])
def test_tasks_are_made_as_they_are_asked_for(workers):
    made = []

    def pairs():
        for i in range(9):
            made.append(i)
            yield f"t{i}", i

    results = map_tasks(square, pairs(), workers=workers)
    first = next(results)  # of two that run, whichever is done
    assert len(made) == (1 if workers == 0 else 2)
    assert outcome([first, *results]) == {f"t{i}": i * i for i in range(9)}


def pid(_):
    time.sleep(0.02)
    return os.getpid()


def test_warm_workers_serve_one_map_after_another():
    with Workers(2) as workers:
        first, second = (outcome(map_tasks(pid, tasks(6), workers=workers)) for _ in range(2))
    assert len({*first.values(), *second.values()}) <= 2


def test_warm_workers_go_on_after_one_of_them_died():
    with Workers(2) as workers:
        results = {r.key: r.ok for r in map_tasks(die_on_two, tasks(8), workers=workers)}
        assert results == {f"t{i}": i != 2 for i in range(8)}
        assert outcome(map_tasks(square, tasks(3), workers=workers)) == {"t0": 0, "t1": 1, "t2": 4}


ORPHANS = """
import os, sys, time
from pretrace.executor import map_tasks
if __name__ == "__main__":
    for result in map_tasks(os.getpgid, {"a": 0, "b": 0, "c": 0}, workers=2):
        import psutil
        print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
        time.sleep(60)
"""


def test_workers_leave_when_their_parent_is_killed(tmp_path):
    import subprocess
    import sys
    import time

    import psutil

    (tmp_path / "orphans.py").write_text(ORPHANS)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "orphans.py")], stdout=subprocess.PIPE, text=True, env=env
    )
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(workers) >= 2
    limit = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in workers) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not [pid for pid in workers if psutil.pid_exists(pid)]


def wait_long(_):
    time.sleep(100)


def interrupt_the_group(_):
    os.kill(os.getpid(), signal.SIGINT)  # what Ctrl-C does to a worker
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_workers_ignore_interrupts():
    before = signal.getsignal(signal.SIGINT)
    assert outcome(map_tasks(interrupt_the_group, {"a": 0}, workers=1)) == {"a": True}
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_of_the_parent_ends_workers_at_once():
    def interrupted():
        with Workers(1) as pool:
            pool.warm(wait_long, None)
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - start < 60
    assert not multiprocessing.active_children()
