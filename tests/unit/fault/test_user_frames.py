"""Which frames of a traceback are the user's, the line that a message names, and the text without the others."""

import traceback

import pytest

from nvrx_core.fault.user_frames import is_users, origin, origin_in, raised_at, shortened

PACKAGES = "/venv/lib/python3.11/site-packages"
OS = traceback.__file__.replace("traceback.py", "os.py")


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("<stdin>", True),
        ("<ipython-input-1-abc>", True),
        ("<frozen os>", False),
        ("<string>", False),
        (OS, False),
        (f"{PACKAGES}/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", False),
        ("/work/my-packages/train.py", True),
        (f"{PACKAGES}/mytrain/cli.py", False),
        ("/src/integrations/nvrx_lightning/strategy.py", False),
        ("/src/nvrx_core/inprocess/wrap.py", False),
    ],
)
def test_the_users_files(file, users):
    assert is_users(file) == users


@pytest.mark.parametrize(
    ("file", "users"),
    [("mytrain/models/net.py", True), ("mytrain.py", True), ("mytrainer/net.py", False), ("torch/mytrain.py", False)],
)
def test_an_installed_package_of_the_users_is_no_library(file, users):
    assert is_users(f"{PACKAGES}/{file}", frozenset({"mytrain"})) == users


def raised(*files, error=None):
    """Return an exception that went through functions of these files, the outermost first."""
    space = {"error": error or ValueError("injected")}
    body = "raise error"
    for number, file in enumerate(reversed(files)):
        exec(compile(f"def f{number}():\n    {body}", file, "exec"), space)
        body = f"f{number}()"
    try:
        space[body[:-2]]()
    except Exception as failure:
        return failure.with_traceback(failure.__traceback__.tb_next)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["/me/train.py", "/me/model.py", f"{PACKAGES}/torch/linear.py"], "/me/model.py:2"),
        (["/me/train.py", "<frozen os>"], "/me/train.py:2"),
        ([f"{PACKAGES}/torch/linear.py", "<frozen os>"], f"{PACKAGES}/torch/linear.py:2"),
        (["<string>"], "<string>:2"),
    ],
)
def test_the_origin_is_the_users_innermost_line(files, line):
    assert origin(raised(*files).__traceback__) == line


def test_an_exception_that_was_never_raised_has_no_origin():
    assert origin(ValueError().__traceback__) == raised_at(ValueError().__traceback__) == ""


def test_the_line_that_raises_is_a_librarys_where_the_origin_is_the_users():
    trace = raised("/me/train.py", f"{PACKAGES}/torch/linear.py", "<frozen os>").__traceback__
    assert (origin(trace), raised_at(trace)) == ("/me/train.py:2", "<frozen os>:2")


def text(error):
    return shortened(traceback.TracebackException.from_exception(error, compact=True)).splitlines()


def test_a_run_of_library_frames_is_a_line_and_the_users_frame_is_last():
    path = f"{PACKAGES}/lightning/loop.py"
    assert text(raised("/me/train.py", path, f"{PACKAGES}/six.py", path, "/me/model.py")) == [
        "Traceback (most recent call last):",
        '  File "/me/train.py", line 2, in f4',
        "  [3 frames of lightning, six]",
        '  File "/me/model.py", line 2, in f0',
        "ValueError: injected",
    ]


@pytest.mark.parametrize(
    ("library", "name"),
    [
        (f"{PACKAGES}/torch/nn/linear.py", "torch"),
        ("/src/nvrx_core/testing.py", "nvrx_core"),
        ("<frozen os>", "Python"),
    ],
)
def test_where_a_library_has_raised_its_innermost_frames_are_shown(library, name):
    assert text(raised("/me/train.py", *[library] * 5)) == [
        "Traceback (most recent call last):",
        '  File "/me/train.py", line 2, in f5',
        f"  [2 frames of {name}]",
        *(f'  File "{library}", line 2, in f{number}' for number in (2, 1, 0)),
        "ValueError: injected",
    ]
    assert len(text(raised("/me/train.py", *[library] * 3))) == 1 + 4 + 1


def test_the_frames_of_an_installed_training_are_shown():
    """/venv/bin/mytrain, its modules in site-packages, and torch below them."""
    ours = [f"{PACKAGES}/mytrain/{name}.py" for name in ("cli", "recipe", "model")]
    error = raised("/venv/bin/mytrain", *ours, *[f"{PACKAGES}/torch/module.py"] * 4)
    captured = traceback.TracebackException.from_exception(error, compact=True)
    assert origin(error.__traceback__, frozenset({"mytrain"})) == f"{ours[-1]}:2"
    shown = shortened(captured, frozenset({"mytrain"})).splitlines()
    assert [line for line in shown if "mytrain" in line] == [
        '  File "/venv/bin/mytrain", line 2, in f7',
        *(f'  File "{file}", line 2, in f{number}' for file, number in zip(ours, (6, 5, 4), strict=True)),
    ]


def test_the_innermost_frames_of_a_library_alone_are_shown():
    files = [f"{PACKAGES}/lightning/{number}.py" for number in range(9)]
    shown = text(raised(*files))
    assert shown[1] == "  [1 frame of lightning]"
    assert len(shown) == 1 + 1 + 8 + 1
    assert len(text(raised(*files[:8]))) == 1 + 8 + 1
    assert text(ValueError("never raised")) == ["ValueError: never raised"]


def test_only_the_last_frame_has_carets():
    def outer():
        return [inner()]

    def inner():
        return [1 / 0, 2]

    with pytest.raises(ZeroDivisionError) as found:
        outer()
    assert [set(line) <= set(" ~^") for line in text(found.value)].count(True) == 1


def test_what_is_chained_is_shortened_too():
    library = [f"{PACKAGES}/torch/linear.py"] * 4
    cause, context, member = (raised("/me/train.py", *library, error=KeyError(name)) for name in ("a", "b", "c"))
    member.__context__ = context
    group = raised("/me/train.py", *library, error=ExceptionGroup("several", [member]))
    group.__cause__ = cause
    assert sum(line.strip(" |").startswith("[1 frame of torch") for line in text(group)) == 4


CHAINED = """\
Traceback (most recent call last):
  File "/home/me/data.py", line 3, in read
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/train.py", line 7, in <module>
    load()
  File "/env/lib/python3.11/site-packages/torch/nn/module.py", line 90, in load
    raise ValueError("no x")
ValueError: no x
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (CHAINED, "/home/me/train.py:7"),
        ('  File "/job/train.py", line 2\n    x = (\nSyntaxError: unclosed', "/job/train.py:2"),
        ('  + Exception Group Traceback (most recent call last):\n  |   File "/job/train.py", line 4, in <module>\n',
         "/job/train.py:4"),
        ("ValueError: no x", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_text_of_a_traceback_has_the_same_origin(text, place):
    assert origin_in(text) == place
