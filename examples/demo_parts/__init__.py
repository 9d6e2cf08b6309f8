"""The parts of the demo `examples/inprocess/demo.py`, many of which that of the launcher uses as well.

In the ranks run `under_nvrx` or `under_torchrun`, both of which call `train`, with what it needs: `text`, `model`,
`checkpoints`, `injection`, `journal`, `settings`. In the demo's own process, which never imports torch, run `options`
and `schedule` (what is asked for), `program`, `processes`, `ports`, `child`, `signals` and `runs` (how it is started,
and ended), `following` and `run_history` (what happens, by the files that the ranks write), `play` (the viewer breaks
it), and `view`, `terminal`, `durations`, `report`, `picture`, `recording` and `svg`, which show it.
"""
