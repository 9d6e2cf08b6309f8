"""What a call holds is undone once, by the rank; a child of `os.fork` disowns it."""

from nvrx_core.process.forks import CleanupStack


def test_the_rank_undoes_in_reverse_and_disowns_nothing():
    done = []
    with CleanupStack() as cleanup:
        for name in ("page", "connections"):
            cleanup.callback(done.append, f"close {name}")
            cleanup.in_child(lambda name=name: done.append(f"disown {name}"))
    assert done == ["close connections", "close page"]


def test_a_child_disowns_and_undoes_nothing():
    done = []
    with CleanupStack() as cleanup:
        cleanup.callback(done.append, "close page")
        cleanup.in_child(lambda: done.append("disown page"))
        cleanup.disown()
    assert done == ["disown page"]
