"""Text and arrays of inputs to rows."""
