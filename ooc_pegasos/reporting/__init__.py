"""Text, HTML and progress displays of results, of which it imports nothing but their types.
May import: util.
"""
