"""The adapter `textarena:ID`: single-player text games of TextArena."""
