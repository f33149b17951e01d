"""From messages to tokens and back: templates, tool calls."""
