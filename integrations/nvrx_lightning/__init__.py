"""PyTorch Lightning's front door: a callback and strategies that survive faults."""
