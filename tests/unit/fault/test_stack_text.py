"""What is read off the stacks that faulthandler has written."""

import traceback

from nvrx_core.fault.stack_text import Frame, in_one_line, main_thread, place_of, waits_for_peers

STDLIB = traceback.__file__.rpartition("/")[0]

TEXT = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f02 (most recent call first):
  File "/opt/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/home/me/train.py", line 41 in take_step
  File "/home/me/train.py", line 60 in main
  File "/home/me/train.py", line 66 in <module>
"""


def test_the_main_thread_is_the_last_one():
    stack = main_thread(TEXT)
    assert stack[1] == Frame("/home/me/train.py", 41, "take_step")
    assert len(stack) == 4


def test_a_line_has_the_innermost_frames():
    line = "distributed_c10d.py:2810 all_reduce < train.py:41 take_step < train.py:60 main < ..."
    assert in_one_line(main_thread(TEXT)) == line
    assert in_one_line(main_thread(TEXT)[2:]) == "train.py:60 main < train.py:66 <module>"
    assert in_one_line(()) == ""


def test_the_stack_of_a_launchers_worker_begins_with_its_script():
    program = "/lib/nvrx_launcher/workers/worker_program.py"
    text = f'{TEXT}  File "{program}", line 133 in _run_script\n  File "{program}", line 60 in main\n'
    assert main_thread(text) == main_thread(TEXT)


def test_a_rank_waits_for_its_peers_if_it_is_in_torchs_distributed_package():
    stack = main_thread(TEXT)
    assert waits_for_peers(stack)
    assert not waits_for_peers(stack[1:])
    assert not waits_for_peers(())


def test_a_process_that_has_not_answered_has_no_stack():
    assert main_thread("") == ()
    assert main_thread("Thread 0x01 (most recent call first):\n  <no Python frame>\n") == ()


def test_the_place_is_the_user_s_innermost_frame():
    lock, users = Frame(f"{STDLIB}/threading.py", 327, "wait"), Frame("/job/train.py", 88, "next_batch")
    assert place_of((), frozenset()) == (None, None)
    assert place_of((users, lock), frozenset()) == (users, None)
    assert place_of((lock, users), frozenset()) == (users, lock)
    assert place_of((lock,), frozenset()) == (lock, None)
    installed = Frame("/usr/lib/site-packages/trainer/loop.py", 5, "run")
    assert place_of((installed, users), frozenset({"trainer"})) == (installed, None)
    injected = Frame("/lib/site-packages/nvrx_core/testing/injectors.py", 7, "_hang_lock")
    assert place_of((injected, users), frozenset()) == (injected, None)
