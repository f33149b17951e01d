"""The report of every study: arms compared over seeds, tables, pictures, the page."""
