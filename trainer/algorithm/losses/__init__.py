"""One loss per file, chosen by `trainer.loss`: a file that declares `LOSS` is one."""
