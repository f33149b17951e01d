"""Commands about runs: start one, see it, control it, replay its episodes, learn from it again."""
