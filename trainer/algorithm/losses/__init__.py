"""One loss per file, chosen by `trainer.loss`."""
