"""Output for people: consoles, progress bars, terminal tables, figures and Markdown."""
