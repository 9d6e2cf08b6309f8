"""The parts of the demo.

In the ranks run `train` and what it needs: `text`, `model`, `checkpoints`, `journal`. In the demo's own process,
which never imports torch, run `options` and `schedule` (what is asked for), `processes` (the store and the ranks),
`story` (what happened, by the files that the ranks write), and `view`, `terminal`, `report` and `picture`, which show
it.
"""
