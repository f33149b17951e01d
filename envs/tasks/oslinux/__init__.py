"""OS: answer a question about a Linux system, or change it, through a shell."""
