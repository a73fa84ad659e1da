"""metrics.jsonl to TensorBoard's event files, for scripts/to_tensorboard.py."""
