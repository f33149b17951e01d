"""The words of generated items."""

NOUNS = (
    "apple", "bread", "cloud", "dance", "eagle", "field", "garden", "house", "island", "jacket",
    "kettle", "lemon", "market", "needle", "ocean", "paper", "queen", "river", "silver", "table",
    "umbrella", "valley", "window", "yellow", "zebra", "anchor", "basket", "candle",
)  # fmt: skip
STEMS = (
    "notes", "report", "plan", "budget", "letter", "draft", "list", "memo", "agenda", "summary",
    "log", "recipe", "song", "story", "review", "invoice",
)  # fmt: skip
FOLDERS = (
    "archive", "backup", "photos", "projects", "drafts", "shared", "private", "old", "work", "home",
    "music", "travel",
)  # fmt: skip
ENDINGS = ("txt", "md", "csv")
USERS = ("Alice", "Bob", "Catherine", "Daniel")
ME = "sam"
