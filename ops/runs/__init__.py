"""Operations on whole runs: begin, list, pause, fork, export, delete."""
