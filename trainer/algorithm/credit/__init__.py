"""One way to credit turns per file, chosen by `trainer.credit`: a file that declares `CREDIT`."""
