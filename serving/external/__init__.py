"""The policy server for models behind an external API."""
