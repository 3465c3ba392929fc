"""Training runs.

`run` makes a run from options, `loop` takes its steps, `trainer` computes a step, and `resuming`
keeps the state on disk. `optimizer` and `schedule` update the weights, `strategy` has the devices.
"""
