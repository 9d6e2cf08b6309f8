"""The arguments of the process."""

_GLOBAL_ARGS = None
_GLOBAL_SIGNAL_HANDLER = None


def get_args():
    assert _GLOBAL_ARGS is not None, "args is not initialized."
    return _GLOBAL_ARGS


def set_args(args):
    global _GLOBAL_ARGS
    assert _GLOBAL_ARGS is None, "args is already initialized."
    _GLOBAL_ARGS = args


def destroy_global_vars():
    global _GLOBAL_ARGS
    _GLOBAL_ARGS = None
