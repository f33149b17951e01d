"""Operations on whole runs: begin, list, look at, pause, fork, export, delete."""
