"""The one training loop: batches, gradients, updates, schedules, validation, checkpoints and monitors."""
