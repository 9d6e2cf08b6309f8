"""Trainings as users write them: functions for `nvrx_lightning.verify`, with what it is to find in each."""
